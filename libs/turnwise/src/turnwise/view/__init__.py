"""A local web page over a folder of runs, which may be growing.

`follow` reads files that another process writes, `run`, `started`, `gpus` and `state` a run,
`episodes` finds episodes, `tokens`, `calls` and `lanes` open one, `comparison` puts runs beside
each other, `server` serves what they know as JSON to the page in `assets`. What both have is drawn
by the parts of `turnwise.report`.
"""

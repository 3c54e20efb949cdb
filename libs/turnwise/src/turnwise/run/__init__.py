"""The run folder: what a run leaves on disk, whole whenever it ends.

runs/<method>-<time>/
  config.json       the resolved configuration
  start.json        what the command line changed of it, and the method's import name (`start`)
  metrics.jsonl     a row per training step and evaluation; slime's own numbers, stalls (`metrics`)
  episodes.jsonl    traces of selected episodes (`traces`, `authors`)
  summary.json      before and after, or an evaluation's result, and what it means (`summary`)
  status.json       what the run does and waits for now (`status`, `watching`, `signs`)
  control.jsonl     what people ask of it; history.jsonl its answers (`control`)
  report.html       made from the above (`turnwise.report`)
  checkpoints/      step_N, complete when manifest.json is there
  logs/

A row is on the disk when it is known, and the traces of the episodes that it counts before it. On a
cluster the hooks write it where they run (`turnwise.slime.files`); from a node without the folder
the rows come through the job's log (`relay`).
"""

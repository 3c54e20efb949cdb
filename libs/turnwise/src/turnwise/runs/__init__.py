"""The command that lists runs, says what one does, and asks something of it.

`asking` puts a request to a run on either backend and waits for its answer, for this command and
for the page of `turnwise.view`; `told` says a status in words.
"""

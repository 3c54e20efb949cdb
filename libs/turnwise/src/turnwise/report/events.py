"""What happened to a run beside its steps: stalls, and what people asked of it."""

from __future__ import annotations

import time

from turnwise.report.load import RunData, halving
from turnwise.report.sections import MAX_ROWS, Table
from turnwise.run.control import in_words


def event_rows(run: RunData) -> Table:
    """Stalls and the ends of requests, in order of time."""
    rows = [(one.at, one.step, one.event, one.text, "") for one in run.events]
    for one in run.outcomes:
        if one.answer == "noted":
            continue
        answer = f"{one.answer}: {one.said}" if one.said else one.answer
        rows.append((one.at, one.step, in_words(one), answer, one.by))
    kept = sorted(halving(sorted(rows))[:MAX_ROWS])
    return Table(
        head=("at (UTC)", "after step", "what", "", "by"),
        rows=[
            (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)), str(step), *texts)
            for at, step, *texts in kept
        ],
        total=len(rows),
        file="metrics.jsonl and history.jsonl",
    )

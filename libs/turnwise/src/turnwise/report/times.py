"""Where the seconds of a run go: by stage, and what its episodes wait for."""

from __future__ import annotations

import math

from turnwise.report.charts import STAGES, percent, stage_seconds, wait_styles
from turnwise.report.load import RunData


def stage_rows(run: RunData) -> list[tuple[str, str, str, str, str]]:
    """Style, stage, time in all, share, mean of one."""
    times = {stage: list(seconds.values()) for stage, seconds in stage_seconds(run).items()}
    total = sum(sum(values) for values in times.values())
    return [
        (
            STAGES[name],
            name,
            duration(sum(values)),
            percent(sum(values) / total) if total else "-",
            f"{sum(values) / len(values):.1f} s",
        )
        for name, values in times.items()
        if values
    ]


def wait_rows(run: RunData) -> list[tuple[str, str, str]]:
    """Style, what an episode spends its time on, mean seconds of an episode in training."""
    rows = []
    for name, style in wait_styles(run).items():
        found = [row.metrics[name] for row in run.trains if name in row.metrics]
        count = sum(one.episodes for one in found)
        mean = sum(one.mean * one.episodes for one in found) / count if count else math.nan
        rows.append((style, name.removesuffix("_s").replace("_", " "), f"{mean:.2g} s"))
    return rows


def waiting(run: RunData) -> str:
    """How long rollouts waited for the longest of a step, in a sentence; "" where nobody says."""
    told = [row for row in run.trains if row.waiting_s is not None]
    rollout = sum(row.rollout_s for row in told)
    if not rollout:
        return ""
    waited = sum(row.waiting_s or 0.0 for row in told)
    return (
        f"Of the rollouts' time {duration(waited)} ({percent(waited / rollout)}) went by, on"
        " average, with a place for an episode empty until the longest of the step was done."
    )


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"

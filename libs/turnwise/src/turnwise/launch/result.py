"""What a run on a cluster showed: verdict and report, as of a run on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from turnwise.command import RunError
from turnwise.config import ConfigError
from turnwise.printable import tell
from turnwise.run.folder import RunFolder
from turnwise.run.metrics import EvalRow, parse_row
from turnwise.run.summary import Summary, changes, lost_trials, write_summary
from turnwise.trials import mean_score, paired_difference


def tell_result(run_dir: Path, method: str, seed: int, out: TextIO) -> None:
    """Writes summary.json and says what each data set's evaluations showed.

    The summary is of the data set that the run's file names first. Nothing is said of a run that
    evaluated nothing.

    Args:
        method: Its name, for the summary.
        seed: The run's, for the summary.
    """
    folder = RunFolder(run_dir)
    try:
        rows = [parse_row(row) for row in folder.metric_rows()]
        evaluations = [row for row in rows if isinstance(row, EvalRow)]
        names = list(dict.fromkeys(row.dataset for row in evaluations))
        for place, name in enumerate(names):
            of = [row for row in evaluations if row.dataset == name]
            summary = summarise(of, method, seed)
            if place == 0:
                write_summary(folder, summary)
            tell(f"\n{summary.text()}", out)
    except (ConfigError, ValueError, OSError) as error:
        tell(f"no verdict: {error}", out)


def summarise(evaluations: Sequence[EvalRow], method: str, seed: int) -> Summary:
    """Compares the first evaluation, if it was of the untouched policy, with the last.

    Args:
        evaluations: Of one data set, in order; at least one.
    """
    first, last = evaluations[0], evaluations[-1]
    known = first.step == 0 and last.step > 0
    tasks = {**first.scores, **last.scores}
    before = {task: list(first.scores.get(task, ())) if known else [] for task in tasks}
    after = {task: list(last.scores.get(task, ())) for task in tasks}
    scores = [score for table in (before, after) for row in table.values() for score in row]
    return Summary(
        method=method,
        before=mean_score(before),
        after=mean_score(after),
        difference=paired_difference(before, after),
        baselines=last.baselines,
        trials=max((len(row) for row in after.values()), default=0),
        steps=last.step,
        seed=seed,
        services=last.services,
        coverage=sum(score is not None for score in scores) / max(1, len(scores)),
        claim=(),
        split=last.dataset or "held-out",
        compared=changes(first.compared, last.compared) if known else {},
        tasks=len(tasks),
        lost=lost_trials(first if known else None, last),
    )


def make_report(run_dir: Path, out: TextIO) -> None:
    """Writes report.html, of a run that broke off too; a failure hides no other error."""
    # Needs jinja2, which a launcher has no other use for.
    from turnwise.report import write_report

    try:
        tell(f"report {write_report(run_dir)}", out)
    except (ConfigError, RunError, OSError) as error:
        tell(f"no report: {error}", out)

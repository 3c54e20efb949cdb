"""Trials of an evaluation, and honest statistics on them.

A trial is one episode of one task. Trials of a task are not independent, so every standard
error here is clustered by task: it is taken over the per-task means. Lost trials carry no score;
they lower the coverage, never the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_Z95 = 1.959964
"""97.5 % point of the normal distribution."""
_ROUNDING = 1e-9
"""Values this close to each other, in relation to the largest, are equal: 2/3 - 1/3 is not 1 - 2/3
in floating point, and an error of 1e-17 would make any difference a large one."""


class TrialError(ValueError):
    """Trials are missing or duplicated: a pass rate over them would not mean what it says."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One episode of an evaluation: `score` is None where the episode was lost or cancelled."""

    task_id: str
    trial: int
    score: float | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its standard error clustered by task.

    Attributes:
        mean: Mean over tasks of the mean over the task's scored trials; NaN without any.
        stderr: Sample deviation of the per-task means over sqrt(tasks); NaN below two tasks.
        tasks: Tasks with at least one scored trial.
        trials: Scored trials.
    """

    mean: float
    stderr: float
    tasks: int
    trials: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.stderr:.3f}"


def by_task(
    trials: Iterable[Trial], task_ids: Sequence[str], n_trials: int
) -> dict[str, list[float | None]]:
    """Trials as `{task: [score of trial 0, score of trial 1, ...]}`, complete and in order.

    Raises:
        TrialError: on a duplicate, a missing or an unexpected trial; names the first of each.
    """
    table: dict[str, dict[int, float | None]] = {task_id: {} for task_id in task_ids}
    if len(table) != len(task_ids):
        raise TrialError("the list of tasks names a task twice")
    for trial in trials:
        row = table.get(trial.task_id)
        if row is None or not 0 <= trial.trial < n_trials:
            raise TrialError(f"unexpected trial {trial.trial} of task {trial.task_id}")
        if trial.trial in row:
            raise TrialError(f"trial {trial.trial} of task {trial.task_id} stands twice")
        row[trial.trial] = trial.score
    missing = [
        (task_id, index)
        for task_id, row in table.items()
        for index in range(n_trials)
        if index not in row
    ]
    if missing:
        task_id, index = missing[0]
        raise TrialError(
            f"{len(missing)} of {len(table) * n_trials} trials are missing,"
            f" first trial {index} of task {task_id}"
        )
    return {task_id: [row[index] for index in range(n_trials)] for task_id, row in table.items()}


def mean_score(table: Mapping[str, Sequence[float | None]]) -> Estimate:
    """The mean score, each task weighing the same."""
    return _over_tasks({task_id: _scored(scores) for task_id, scores in table.items()})


def paired_difference(
    before: Mapping[str, Sequence[float | None]], after: Mapping[str, Sequence[float | None]]
) -> Estimate:
    """Mean over tasks of (mean after - mean before), for tasks that both scored.

    Raises:
        TrialError: if the two do not cover the same tasks.
    """
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise TrialError(f"not the same tasks before and after, first {odd[0]}")
    differences = {}
    trials = 0
    for task_id in before:
        old, new = _scored(before[task_id]), _scored(after[task_id])
        if old and new:
            differences[task_id] = [sum(new) / len(new) - sum(old) / len(old)]
            trials += len(old) + len(new)
    estimate = _over_tasks(differences)
    return Estimate(estimate.mean, estimate.stderr, estimate.tasks, trials)


def pass_hat_k(table: Mapping[str, Sequence[float | None]], k: int) -> Estimate:
    """The chance that k trials of a task all pass, averaged over tasks (pass^k).

    comb(c, k) / comb(n, k) per task, with c passes of n scored trials (Yao et al. 2024,
    arXiv 2406.12045, section 5.2). A trial passes at score 1. A task with fewer than k scored
    trials can't tell and is left out; `tasks` says how many could.
    """
    values = {}
    trials = 0
    for task_id, row in table.items():
        scores = _scored(row)
        if len(scores) >= k:
            passes = sum(score >= 1 - 1e-6 for score in scores)
            values[task_id] = [math.comb(passes, k) / math.comb(len(scores), k)]
            trials += len(scores)
    estimate = _over_tasks(values)
    return Estimate(estimate.mean, estimate.stderr, estimate.tasks, trials)


def _scored(scores: Sequence[float | None]) -> list[float]:
    return [score for score in scores if score is not None]


def _over_tasks(scores: Mapping[str, Sequence[float]]) -> Estimate:
    means = [sum(row) / len(row) for row in scores.values() if row]
    return estimate_over_tasks(means, sum(len(row) for row in scores.values()))


def estimate_over_tasks(values: Sequence[float], trials: int) -> Estimate:
    """The mean of one value a task, with its standard error: 0 where all are equal, NaN of one.

    Args:
        values: Of each task that could tell.
        trials: Scored trials behind them.
    """
    array = np.array(values, dtype=np.float64)
    stderr = array.std(ddof=1) / math.sqrt(array.size) if array.size > 1 else math.nan
    if array.size > 1 and np.ptp(array) <= _ROUNDING * np.abs(array).max():
        stderr = 0.0
    return Estimate(
        mean=float(array.mean()) if array.size else math.nan,
        stderr=float(stderr),
        tasks=int(array.size),
        trials=trials,
    )


def unanimous_bound(estimate: Estimate) -> float | None:
    """Where every task scores 0, what 95 % certainty leaves above; where every one scores 1, below.

    Their deviation is 0, which says nothing of other tasks. This is the end of Wilson's interval
    (1927, J. Am. Stat. Assoc. 22) of 0 or all of n: z^2 / (n + z^2) from it. None elsewhere.
    """
    if estimate.stderr != 0 or estimate.mean not in (0.0, 1.0):
        return None
    beyond = _Z95**2 / (estimate.tasks + _Z95**2)
    return beyond if estimate.mean == 0 else 1 - beyond

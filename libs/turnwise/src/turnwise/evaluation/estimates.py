"""Statistics of k attempts at each task, with formulas that can be checked by hand.

Tasks are the units: attempts at one task are not independent, so every standard error is taken over
per-task values, and the bootstrap draws tasks. A lost attempt has no score. It is in no mean, but
each estimate comes with what it would be had all lost attempts failed, and had all passed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.trials import Estimate, TrialError, estimate_over_tasks

RIGHT = 1 - 1e-6
"""From this score on an attempt passes."""
DRAWS = 10_000
"""Bootstrap samples."""
_CHUNK = 1 << 22
"""Indices that the bootstrap draws at once."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One of the k attempts at a task.

    Attributes:
        score: None where it was lost.
        vote: The answer in a normal form, by which equal answers are found; None without one.
    """

    score: float | None
    vote: str | None = None

    @property
    def right(self) -> bool:
        return self.score is not None and self.score >= RIGHT


Table = Mapping[str, Sequence[Attempt]]
"""`{task: its attempts in order}`; every task asked for, lost attempts included."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """An estimate over scored attempts, and what the lost ones could make of it.

    Attributes:
        estimate: Over tasks with scored attempts enough.
        low, high: Over every task and attempt, with each lost attempt failed, or passed.
    """

    estimate: Estimate
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """After minus before on the same tasks, by a paired bootstrap over tasks.

    Attributes:
        mean: Mean over tasks of the difference of their means.
        stderr: Deviation of the bootstrap means.
        low, high: Their 2.5 and 97.5 % points; too close together where there are few tasks.
        p_value: Two-sided, of the paired randomisation test (Fisher 1935, section 21): the share
            of all ways to give each task's difference a sign whose mean is as far from 0 as what
            was found; of so many draws of one, and of what was found, where there are more ways.
            Five tasks can't have less than 1/16.
        tasks: Tasks with a scored attempt on both sides.
        worst, best: The mean over every task with each lost attempt against, or for, the change.
    """

    mean: float
    stderr: float
    low: float
    high: float
    p_value: float
    tasks: int
    worst: float
    best: float

    @property
    def shown(self) -> bool:
        """Whether the 95 % interval lies on one side of 0, and chance alone seldom does that."""
        return self.p_value < 0.05 and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "nothing can be said: no task has a score on both sides"
        points = f"{100 * self.mean:+.1f} points, paired over {self.tasks} tasks"
        if math.isnan(self.stderr):
            return f"{points}; no error can be given"
        return (
            f"{points}, 95 % interval {100 * self.low:+.1f} to {100 * self.high:+.1f},"
            f" p = {self.p_value:.2g}: {'a' if self.shown else 'no'} difference is shown"
        )


def as_attempts(table: Mapping[str, Sequence[float | None]]) -> dict[str, list[Attempt]]:
    """Scores alone (`turnwise.trials.by_task`) as attempts."""
    return {task_id: [Attempt(score) for score in scores] for task_id, scores in table.items()}


def avg_at_k(table: Table) -> Bounded:
    """The mean score, each task weighing the same."""
    return _bounded(table, _mean_of, lambda attempts, filler: _mean_of(filled(attempts, filler)))


def pass_at_k(table: Table, k: int) -> Bounded:
    """The chance that one of k attempts passes, without bias.

    1 - comb(n - c, k) / comb(n, k) with c passes of n scored attempts (Chen et al. 2021,
    arXiv 2107.03374, section 2.1). A task with fewer than k scored attempts can't tell and is in
    the bounds alone.

    Raises:
        ValueError: if k is below 1, or a task was not attempted k times.
    """
    if k < 1 or any(len(attempts) < k for attempts in table.values()):
        raise ValueError(f"pass@{k} needs {k} attempts at each task, and k of at least 1")

    def value(attempts: Sequence[Attempt]) -> float | None:
        scored = [attempt for attempt in attempts if attempt.score is not None]
        if len(scored) < k:
            return None
        passes = sum(attempt.right for attempt in scored)
        return 1 - math.comb(len(scored) - passes, k) / math.comb(len(scored), k)

    return _bounded(table, value, lambda attempts, filler: value(filled(attempts, filler)))


def maj_at_k(table: Table) -> Bounded:
    """The score of the answer that most attempts at a task give.

    Answers that tie for most votes share the vote: two tied answers of which one passes give 0.5.
    Where nobody votes the task scores 0. An answer's score is the mean of its attempts' scores. For
    the bounds the lost attempts at a task all vote for one failing answer, or for a passing one.
    """

    def bound(attempts: Sequence[Attempt], filler: float) -> float:
        votes = _votes(attempts)
        lost = sum(attempt.score is None for attempt in attempts)
        if not lost:
            return _winner(votes)
        side = [n for n, (_, score) in enumerate(votes) if (score >= RIGHT) == (filler == 1)]
        ends = [_winner([*votes, (lost, filler)])]
        for place in side:
            count, score = votes[place]
            ends.append(_winner([*votes[:place], (count + lost, score), *votes[place + 1 :]]))
        return max(ends) if filler == 1 else min(ends)

    def value(attempts: Sequence[Attempt]) -> float | None:
        if all(attempt.score is None for attempt in attempts):
            return None
        return _winner(_votes(attempts))

    return _bounded(table, value, bound)


def paired_bootstrap(
    before: Table, after: Table, *, seed: int = 0, draws: int = DRAWS
) -> Difference:
    """Compares avg@k of two runs over the same tasks; the numbers of attempts may differ.

    Tasks are drawn with replacement (Efron 1979), each with all its attempts on both sides.

    Raises:
        TrialError: if the two do not cover the same tasks.
    """
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise TrialError(f"{len(odd)} tasks are in one of the two runs alone, first {odd[0]}")
    changes, worst, best = [], [], []
    for task_id in before:
        old, new = before[task_id], after[task_id]
        pair = _mean_of(old), _mean_of(new)
        if pair[0] is not None and pair[1] is not None:
            changes.append(pair[1] - pair[0])
        worst.append(_sure(new, 0.0) - _sure(old, 1.0))
        best.append(_sure(new, 1.0) - _sure(old, 0.0))
    bounds = (float(np.mean(worst)), float(np.mean(best))) if worst else (math.nan, math.nan)
    if len(changes) < 2:
        mean = changes[0] if changes else math.nan
        return Difference(mean, math.nan, math.nan, math.nan, math.nan, len(changes), *bounds)
    values, rng = np.array(changes), np.random.default_rng(seed)
    means = _bootstrap_means(values, rng, draws)
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(
        mean=float(np.mean(changes)),
        stderr=float(means.std(ddof=1)),
        low=float(low),
        high=float(high),
        p_value=_chance(values, rng, draws),
        tasks=len(changes),
        worst=bounds[0],
        best=bounds[1],
    )


def _bootstrap_means(
    values: NDArray[np.float64], rng: np.random.Generator, draws: int
) -> NDArray[np.float64]:
    means = np.empty(draws)
    step = max(1, _CHUNK // len(values))
    for start in range(0, draws, step):
        count = min(step, draws - start)
        index = rng.integers(0, len(values), (count, len(values)))
        means[start : start + count] = values[index].mean(axis=1)
    return means


def _chance(values: NDArray[np.float64], rng: np.random.Generator, draws: int) -> float:
    """The p-value of the paired randomisation test."""
    # Means that are as far away but for rounding count.
    least = abs(values.mean()) - 1e-12
    if 2 ** len(values) <= draws:
        every = np.array(list(itertools.product((-1, 1), repeat=len(values))))
        return float((np.abs((every * values).mean(axis=1)) >= least).mean())
    step = max(1, _CHUNK // len(values))
    as_far = 0
    for start in range(0, draws, step):
        signs = rng.integers(0, 2, (min(step, draws - start), len(values))) * 2 - 1
        as_far += int((np.abs((signs * values).mean(axis=1)) >= least).sum())
    return (1 + as_far) / (1 + draws)


def _bounded(
    table: Table,
    value: Callable[[Sequence[Attempt]], float | None],
    bound: Callable[[Sequence[Attempt], float], float | None],
) -> Bounded:
    known: list[float] = []
    attempts = 0
    for row in table.values():
        found = value(row)
        if found is not None:
            known.append(found)
            attempts += sum(attempt.score is not None for attempt in row)

    def over_all(filler: float) -> float:
        bounds = [found for row in table.values() if (found := bound(row, filler)) is not None]
        return float(np.mean(bounds)) if bounds else math.nan

    return Bounded(estimate_over_tasks(known, attempts), over_all(0.0), over_all(1.0))


def _mean_of(attempts: Sequence[Attempt]) -> float | None:
    scored = [attempt.score for attempt in attempts if attempt.score is not None]
    return sum(scored) / len(scored) if scored else None


def _sure(attempts: Sequence[Attempt], filler: float) -> float:
    return _mean_of(filled(attempts, filler)) or 0.0


def filled(attempts: Sequence[Attempt], filler: float) -> list[Attempt]:
    """The attempts with this score in the place of every lost one's."""
    return [Attempt(filler) if attempt.score is None else attempt for attempt in attempts]


def _votes(attempts: Sequence[Attempt]) -> list[tuple[int, float]]:
    """Votes and score of each answer."""
    scores: dict[str, list[float]] = {}
    for attempt in attempts:
        if attempt.score is not None and attempt.vote is not None:
            scores.setdefault(attempt.vote, []).append(attempt.score)
    return [(len(found), sum(found) / len(found)) for found in scores.values()]


def _winner(votes: Sequence[tuple[int, float]]) -> float:
    if not votes:
        return 0.0
    most = max(count for count, _ in votes)
    tied = [score for count, score in votes if count == most]
    return sum(tied) / len(tied)

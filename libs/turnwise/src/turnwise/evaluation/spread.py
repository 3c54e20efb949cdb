"""How far single runs scatter, and what the best of many is worth by chance alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from turnwise.evaluation.estimates import Table


@dataclass(frozen=True, slots=True)
class Spread:
    """Single runs of the whole set: run j is attempt j at each problem.

    Attributes:
        runs: How many there are.
        mean, deviation, best: Of their scores; the deviation is the sample's, NaN below two.
    """

    runs: int
    mean: float
    deviation: float
    best: float

    def sentence(self) -> str:
        """What the best run is worth, in words; needs two runs."""
        by_chance = self.mean + self.deviation * expected_best(self.runs)
        return (
            f"{self.runs} single runs scatter by {100 * self.deviation:.1f} points around"
            f" {self.mean:.1%}; the best has {self.best:.1%}, where chance alone gives"
            f" {by_chance:.1%}"
        )


def single_runs(table: Table) -> Spread:
    """How much the score of one attempt at every problem scatters from attempt to attempt.

    Runs in which nothing was scored are left out.
    """
    scores = []
    for run in range(max((len(attempts) for attempts in table.values()), default=0)):
        column = [attempts[run].score for attempts in table.values() if run < len(attempts)]
        scored = [score for score in column if score is not None]
        if scored:
            scores.append(sum(scored) / len(scored))
    return spread_of(scores)


def spread_of(scores: Sequence[float]) -> Spread:
    """Mean, sample deviation and maximum of runs' scores."""
    if not scores:
        return Spread(0, math.nan, math.nan, math.nan)
    array = np.array(scores, dtype=np.float64)
    deviation = float(array.std(ddof=1)) if array.size > 1 else math.nan
    return Spread(array.size, float(array.mean()), deviation, float(array.max()))


def expected_best(runs: int) -> float:
    """Expected maximum of `runs` independent standard normal draws.

    The integral of z n f(z) F(z)^(n - 1) with the density f and the distribution F, the mean of the
    largest order statistic, by the trapezoid rule over [-9, 9].

    Raises:
        ValueError: below one run.
    """
    if runs < 1:
        raise ValueError(f"runs must be at least 1, found {runs}")
    normal = NormalDist()
    grid = np.linspace(-9.0, 9.0, 3601)
    density = np.array([normal.pdf(z) for z in grid])
    below = np.array([normal.cdf(z) for z in grid])
    return float(np.trapezoid(grid * runs * density * below ** (runs - 1), grid))


def chance_of_best(runs: int, mean: float, deviation: float, claimed: float) -> float:
    """The chance that the best of `runs` normal draws reaches `claimed`.

    Raises:
        ValueError: below one run, or without a positive deviation.
    """
    if runs < 1 or not deviation > 0:
        raise ValueError(f"needs runs >= 1 and a deviation > 0, found {runs} and {deviation}")
    return 1 - NormalDist(mean, deviation).cdf(claimed) ** runs

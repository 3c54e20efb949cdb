"""What the best of many runs is worth: the size of a maximum by chance alone.

./pants run apps/evaluators/aime:best_of -- --runs 170 --mean 18.7 --deviation 5.1 --claimed 30
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from turnwise.arguments import parse_args
from turnwise.config import CommandConfig
from turnwise.evaluation.spread import chance_of_best, expected_best

DESCRIPTION = (
    "The expected best of independent runs, and how likely chance alone reaches a claimed one. Runs"
    " are taken as normal. Exit codes: 0 ok, 2 usage."
)


class BestOfOptions(CommandConfig):
    """Options of the command; scores in percent."""

    runs: int = Field(ge=1)
    """Runs of which the best was taken."""
    mean: float = Field(ge=0, le=100)
    """Mean of the runs' scores, in percent."""
    deviation: float = Field(gt=0, le=100)
    """Standard deviation of one run's score, in points."""
    claimed: float = Field(ge=0, le=100)
    """The score that is claimed, in percent."""


def best_of(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    options = parse_args(BestOfOptions, argv, prog="best_of", description=DESCRIPTION)
    for line in told(options):
        print(line)
    return 0


def told(options: BestOfOptions) -> list[str]:
    """The answer, a sentence each."""
    runs, mean, deviation = options.runs, options.mean, options.deviation
    best = mean + deviation * expected_best(runs)
    chance = chance_of_best(runs, mean, deviation, options.claimed)
    away = (options.claimed - mean) / deviation
    return [
        f"One run scores {mean:g} ± {deviation:g} (deviation).",
        f"The best of {runs} such runs is expected at {best:.1f}, if nothing but chance tells them"
        " apart.",
        f"{options.claimed:g} is {away:+.1f} deviations from the mean; the best of {runs} reaches"
        f" it by chance with probability {chance:.1%}.",
    ]

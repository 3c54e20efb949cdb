"""Before and after: the numbers that a run is about, and what they mean in words."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

from turnwise.run.folder import RunFolder, write_whole
from turnwise.trials import Estimate

MIN_ERRORS = 3.0
"""A rise counts as shown from this many standard errors of the paired difference on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run showed.

    Attributes:
        before, after, difference: On the held-out tasks; errors are clustered by task, the
            difference is paired by task.
        noop_baseline: What doing nothing scores there.
        trials: Trials of each task at each evaluation.
        steps: Training steps done.
        user: Who played the customer.
        claim: What the result shows and what it does not, one sentence each.
    """

    method: str
    before: Estimate
    after: Estimate
    difference: Estimate
    noop_baseline: float
    trials: int
    steps: int
    seed: int
    user: str
    coverage: float
    claim: tuple[str, ...]

    @property
    def errors(self) -> float:
        """The difference in units of its standard error; NaN without one."""
        if not self.difference.stderr > 0:
            return math.nan
        return self.difference.mean / self.difference.stderr

    @property
    def learned(self) -> bool:
        return self.errors >= MIN_ERRORS

    def verdict(self) -> str:
        """One sentence for people."""
        change = (
            f"held-out pass rate {percent(self.before)} -> {percent(self.after)},"
            f" {100 * self.difference.mean:+.1f} ± {100 * self.difference.stderr:.1f} points"
            f" ({self.errors:+.1f} standard errors, paired over {self.difference.tasks} tasks)"
        )
        if self.learned:
            return f"It learned: {change}."
        if self.errors <= -MIN_ERRORS:
            return f"It got worse: {change}."
        return f"No rise is shown: {change}; {MIN_ERRORS:g} standard errors would show one."


def percent(estimate: Estimate) -> str:
    """`46.9 ± 4.1 %`."""
    return f"{100 * estimate.mean:.1f} ± {100 * estimate.stderr:.1f} %"


def write_summary(folder: RunFolder, summary: Summary) -> None:
    """Writes summary.json whole or not at all."""
    row = {**asdict(summary), "verdict": summary.verdict(), "learned": summary.learned}
    write_whole(folder.summary, json.dumps(row, indent=1, ensure_ascii=False) + "\n")

"""What an evaluation reports, by the names that a benchmark gives.

| name     | is                                                                          |
|----------|-----------------------------------------------------------------------------|
| `avg@k`  | the mean score of k trials                                                  |
| `maj@k`  | the score of the answer that most of k trials give, ties shared             |
| `pass@k` | the chance that one of k trials passes, for k of 2, 4, 8, ... and all       |
| `pass^k` | the chance that k trials of a task all pass, for each k                     |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from turnwise.evaluation.estimates import (
    Attempt,
    Bounded,
    Table,
    avg_at_k,
    filled,
    maj_at_k,
    pass_at_k,
)
from turnwise.run.summary import Measure
from turnwise.trials import pass_hat_k

AVG = "avg@k is the mean score of k trials."
MAJ = "maj@k is the score of the answer that most of k trials give, ties shared."
ONE_PASSES = "pass@k is the chance that one of k trials passes, without bias."
ALL_PASS = "pass^k is the chance that k trials of a task all pass."


def measure(names: Sequence[str], table: Table, k: int) -> tuple[Measure, ...]:
    """The measures of these names, in order.

    Args:
        names: Of the module's table.
        table: Every task with its k trials.
    """
    return tuple(found for name in names for found in MEASURES[name](table, k))


def _avg(table: Table, k: int) -> list[Measure]:
    return [_made(f"avg@{k}", avg_at_k(table), AVG)]


def _maj(table: Table, k: int) -> list[Measure]:
    return [_made(f"maj@{k}", maj_at_k(table), MAJ)]


def _one_passes(table: Table, k: int) -> list[Measure]:
    sizes = [j for j in (2, 4, 8, 16, 32, 64, 128, 256, 512) if j < k]
    return [
        _made(f"pass@{j}", pass_at_k(table, j), ONE_PASSES) for j in (*sizes, *[k][: int(k > 1)])
    ]


def _all_pass(table: Table, k: int) -> list[Measure]:
    return [_made(f"pass^{j}", _pass_hat(table, j), ALL_PASS) for j in range(1, k + 1)]


def _pass_hat(table: Table, j: int) -> Bounded:
    def of(attempts: Mapping[str, Sequence[Attempt]]) -> Mapping[str, Sequence[float | None]]:
        return {name: [one.score for one in row] for name, row in attempts.items()}

    low, high = ({name: filled(row, end) for name, row in table.items()} for end in (0.0, 1.0))
    return Bounded(
        pass_hat_k(of(table), j), pass_hat_k(of(low), j).mean, pass_hat_k(of(high), j).mean
    )


def _made(name: str, found: Bounded, meaning: str) -> Measure:
    return Measure(
        name=name, estimate=found.estimate, meaning=meaning, low=found.low, high=found.high
    )


MEASURES: Mapping[str, Callable[[Table, int], list[Measure]]] = {
    "avg@k": _avg,
    "maj@k": _maj,
    "pass@k": _one_passes,
    "pass^k": _all_pass,
}

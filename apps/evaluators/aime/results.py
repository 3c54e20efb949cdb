"""What an evaluation showed: written to `results.json`, printed, and drawn on the page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from turnwise.config import ConfigError
from turnwise.evaluation.estimates import Bounded, Table, avg_at_k, maj_at_k, pass_at_k
from turnwise.evaluation.journal import account, totals
from turnwise.ledger import LedgerRow
from turnwise.run.folder import write_whole
from turnwise.run.jsonl import dump
from turnwise.run.summary import EvalSummary, Measure
from turnwise.trials import Estimate

from apps.evaluators.aime.attempts import AttemptRow, by_problem
from apps.evaluators.aime.problems import Problem
from apps.evaluators.aime.spread import Spread, single_runs

RESULTS = "results.json"
AVG = "avg@k is the mean score of k attempts."
MAJ = "maj@k is the score of the answer that most of k attempts give, ties shared."
PASS = "pass@k is the chance that one of k attempts is right, without bias."
ALL = "all"
"""Names all data sets together, where there are several."""


class SetResult(msgspec.Struct, frozen=True, kw_only=True):
    """The scores on one data set.

    Attributes:
        k: Attempts at each problem.
        problems: All that were asked.
        attempts, scored: Attempts asked for, and those that carry a score.
        avg, maj: avg@k and maj@k.
        passes: pass@j, by j as text.
        spread: Of single runs.
        by: How many attempts each line of the grader decided.
    """

    k: int
    problems: int
    attempts: int
    scored: int
    avg: Bounded
    passes: dict[str, Bounded]
    maj: Bounded
    spread: Spread
    by: dict[str, int]

    @property
    def coverage(self) -> float:
        """Scored attempts over those asked for."""
        return self.scored / self.attempts


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation.

    Attributes:
        kind: `eval`, or `rescore` where saved outputs were graded again.
        policy, method: Who answered.
        sampling: Temperature, top-p, tokens and seed, the same for every method.
        sets: By name of the data set, with `all` where there are several.
        ledger, equation: Every attempt that was started, lost ones that were made again included.
        endings: Attempts by `Ending.label`.
        totals: Sums of the episodes' numbers.
        services: What frozen models and tools counted, in each process that ended properly.
        usd: What the policy cost; 0 without prices.
        services_usd: What frozen models cost, as they count it.
        seconds: Of all attempts, one after the other.
        claim: What the scores mean and what they do not.
    """

    kind: str = "eval"
    policy: str
    method: str
    sampling: dict[str, Any]
    sets: dict[str, SetResult]
    ledger: LedgerRow
    equation: str
    endings: dict[str, int]
    totals: dict[str, float]
    services: tuple[dict[str, float], ...]
    usd: float
    services_usd: float
    seconds: float
    claim: tuple[str, ...]

    @property
    def main(self) -> SetResult:
        """The set that the verdict speaks of: all together, or the only one."""
        return self.sets.get(ALL) or next(iter(self.sets.values()))

    def verdict(self) -> str:
        """One sentence for people."""
        main = self.main
        names = " + ".join(name for name in self.sets if name != ALL)
        if math.isnan(main.avg.estimate.mean):
            return f"Nothing can be said: no attempt at {names} was scored."
        lost = main.attempts - main.scored
        return (
            f"{self.policy} ({self.method}) scores avg@{main.k} {points(main.avg.estimate)} on"
            f" {names}: {main.problems} problem{'s' * (main.problems != 1)},"
            f" {main.attempts} attempts"
            + (f"; {lost} lost, with them {interval(main.avg)}" if lost else "")
            + "."
        )


def score_sets(
    rows: Sequence[AttemptRow], problems: Sequence[Problem], k: int
) -> dict[str, SetResult]:
    """The scores of each data set, and of all where there are several.

    Raises:
        ConfigError: an attempt is missing or does not belong here.
    """
    table = by_problem(rows, problems, k)
    names = list(dict.fromkeys(problem.data for problem in problems))
    of = {problem.id: problem.data for problem in problems}
    sets = {}
    for name in names:
        mine = {problem: attempts for problem, attempts in table.items() if of[problem] == name}
        sets[name] = _score(mine, k, [row for row in rows if of[row.task_id] == name])
    if len(names) > 1:
        if ALL in sets:
            raise ConfigError(f"--data: {ALL!r} names all data sets together; rename that one")
        sets[ALL] = _score(table, k, rows)
    return sets


def _score(table: Table, k: int, rows: Iterable[AttemptRow]) -> SetResult:
    sizes = [j for j in (1, 2, 4, 8, 16, 32, 64, 128, 256) if j < k]
    attempts = [attempt for row in table.values() for attempt in row]
    return SetResult(
        k=k,
        problems=len(table),
        attempts=len(attempts),
        scored=sum(attempt.score is not None for attempt in attempts),
        avg=avg_at_k(table),
        passes={str(j): pass_at_k(table, j) for j in (*sizes, k)},
        maj=maj_at_k(table),
        spread=single_runs(table),
        by=dict(Counter(row.by for row in rows).most_common()),
    )


def summarise(
    *,
    rows: Sequence[AttemptRow],
    tries: Sequence[AttemptRow],
    problems: Sequence[Problem],
    k: int,
    prices: tuple[float, float] = (0.0, 0.0),
    services: Sequence[Mapping[str, float]] = (),
    **about: Any,
) -> Results:
    """The results of a journal.

    Args:
        rows: What stands for each attempt.
        tries: Every row.
        prices: US dollars per million tokens read and written.
        services: What each process counted.
        about: The remaining fields of `Results`.

    Raises:
        ConfigError: as `score_sets`.
    """
    ledger, sums = account(tries), totals(tries)
    read, written = sums.get("read_tokens", 0.0), sums.get("written_tokens", 0.0)
    return Results(
        sets=score_sets(rows, problems, k),
        ledger=ledger.as_dict(),
        equation=ledger.equation(),
        endings=dict(Counter(row.ending.label for row in tries).most_common()),
        totals=sums,
        services=tuple(dict(row) for row in services),
        services_usd=sum(
            value for row in services for name, value in row.items() if name.endswith("/usd")
        ),
        usd=(read * prices[0] + written * prices[1]) / 1e6,
        seconds=sum(row.wall_s for row in tries),
        **about,
    )


def shared_summary(results: Results, *, replayed: int) -> EvalSummary:
    """The results as every benchmark has them, for tools that know no other shape."""
    main = results.main
    measures = [Measure(name=f"avg@{main.k}", estimate=main.avg.estimate, meaning=AVG)]
    measures.append(Measure(name=f"maj@{main.k}", estimate=main.maj.estimate, meaning=MAJ))
    measures += [
        Measure(name=f"pass@{j}", estimate=value.estimate, meaning=PASS)
        for j, value in main.passes.items()
    ]
    return EvalSummary(
        benchmark=" + ".join(name for name in results.sets if name != ALL),
        policy=results.policy,
        measures=tuple(measures),
        trials=main.k,
        baselines={},
        coverage=main.coverage,
        services={"method": results.method},
        claim=results.claim,
        replayed=replayed,
        lost_as_failed=main.avg.low,
    )


def write_results(folder: Path, results: Results, more: Mapping[str, Any] | None = None) -> Path:
    """Writes results.json, with `more` beside it, whole or not at all; the verdict is in words."""
    path = folder / RESULTS
    row = {**msgspec.to_builtins(results), **(more or {}), "verdict": results.verdict()}
    write_whole(path, dump(row, indent=1) + "\n")
    return path


def lines(results: Results) -> list[str]:
    """The results for a terminal."""
    told = [results.verdict()]
    for name, found in results.sets.items():
        rows = [(f"avg@{found.k}", found.avg), (f"maj@{found.k}", found.maj)]
        rows += [(f"pass@{j}", value) for j, value in found.passes.items()]
        width = max(len(label) for label, _ in rows)
        told.append(f"{name}: coverage {found.coverage:.1%}, {found.scored} of {found.attempts}")
        for label, value in rows:
            told.append(
                f"  {label:<{width}}  {points(value.estimate)}"
                + (f"  [{interval(value)} with lost attempts wrong or right]" * _open(found))
                + f"  {value.estimate.tasks} of {found.problems} problems can tell"
                * (value.estimate.tasks < found.problems)
            )
        told += [f"  {sentence}" for sentence in spread_sentences(found.spread)]
    told.append(results.equation)
    told.append("endings: " + counts(results.endings))
    told.append("graded by: " + counts(results.main.by))
    told += [tokens(results)] if results.totals else []
    told += [f"- {sentence}" for sentence in results.claim]
    return told


def spread_sentences(spread: Spread) -> list[str]:
    """What the best of several runs is worth; none where there is one run."""
    return [spread.sentence()] if spread.runs > 1 else []


def tokens(results: Results) -> str:
    """Tokens and cost, in one line."""
    read, written = (results.totals.get(f"{name}_tokens", 0.0) for name in ("read", "written"))
    money = f", ${results.usd:.4f}" if results.usd else ""
    others = f"; frozen models: ${results.services_usd:.4f}" if results.services_usd else ""
    return f"policy: {read:,.0f} tokens read, {written:,.0f} written{money}{others}"


def counts(values: Mapping[str, int]) -> str:
    """`finished 8, lost:engine 1`."""
    return ", ".join(f"{name} {count:,}" for name, count in values.items()) or "none"


def points(estimate: Estimate) -> str:
    """`18.7 ± 5.1 %`, without the error where there is none."""
    if math.isnan(estimate.mean):
        return "not known"
    error = "" if math.isnan(estimate.stderr) else f" ± {100 * estimate.stderr:.1f}"
    return f"{100 * estimate.mean:.1f}{error} %"


def interval(value: Bounded) -> str:
    """`16.7 to 20.0 %`."""
    return f"{100 * value.low:.1f} to {100 * value.high:.1f} %"


def _open(found: SetResult) -> bool:
    return found.scored < found.attempts

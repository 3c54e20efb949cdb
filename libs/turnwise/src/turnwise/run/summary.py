"""Before and after: the numbers that a run is about, and what they mean in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from turnwise.config import ConfigError
from turnwise.run.disk import reading
from turnwise.run.folder import RunFolder, write_whole
from turnwise.run.jsonl import dump, parse_line
from turnwise.run.metrics import EvalRow, Numbers
from turnwise.trials import Estimate, mean_score, paired_difference, unanimous_bound

MIN_ERRORS = 3.0
"""A rise counts as shown from this many standard errors of the paired difference on, where there
are tasks enough to know the error; see `needed_errors`."""


def needed_errors(tasks: int) -> float:
    """Standard errors that are as rare over so many tasks as `MIN_ERRORS` of a normal distribution.

    Of few tasks the error is a guess itself, and Student's t with tasks - 1 degrees of freedom says
    how far a mean strays: 9.8 errors of 4 tasks, 3.2 of 47. By Wallace's approximation (1959): at
    most a tenth more than needed from 4 tasks on, several times of 2.
    """
    free = max(1, tasks - 1)
    normal = MIN_ERRORS * (8 * free + 3) / (8 * free + 1)
    return math.sqrt(free * math.expm1(normal * normal / free))


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A number of the episodes before and after; `difference` is paired by task."""

    before: Estimate
    after: Estimate
    difference: Estimate

    def __str__(self) -> str:
        if math.isnan(self.difference.mean):
            return "not known"
        errors = self.difference.mean / self.difference.stderr if self.difference.stderr > 0 else 0
        said = f" ({errors:+.1f} standard errors)" if errors else ""
        change = f"{self.difference.mean:+.3g} ± {self.difference.stderr:.2g}{said}"
        return f"{_plain(self.before)} -> {_plain(self.after)}, {change}"


class SummaryTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a run or an evaluation, with sentences before it."""

    title: str
    before: tuple[str, ...] = ()
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def changes(first: Mapping[str, Numbers], last: Mapping[str, Numbers]) -> dict[str, Change]:
    """How the numbers that a method has compared (`EvalRow.compared`) went from one evaluation to
    another of the same tasks, by name; those that both have."""
    return {
        name: Change(
            before=mean_score(before),
            after=mean_score(last[name]),
            difference=paired_difference(before, last[name]),
        )
        for name, before in first.items()
        if name in last
    }


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a training run showed.

    Attributes:
        before, after, difference: On the held-out tasks; errors are clustered by task, the
            difference is paired by task.
        baselines: What fixed behaviours score there.
        trials: Trials of each task at each evaluation.
        steps: Training steps done.
        services: Who played with the policy, by role.
        coverage: Scored trials over started ones, of both evaluations.
        claim: What the result shows and what it does not, one sentence each.
        split: The tasks that were evaluated on.
        compared: Other numbers of the episodes, by name, as the method has them compared.
        tables: What was played once at the end (`turnwise.method.Method.curves`).
        tasks: Evaluated on, whether they were scored or not; 0 where that is not known.
        lost: Trials without a score in both evaluations, by boundary; see `lost_trials`.
    """

    kind: Literal["train"] = "train"
    method: str
    before: Estimate
    after: Estimate
    difference: Estimate
    baselines: dict[str, float]
    trials: int
    steps: int
    seed: int
    services: dict[str, str]
    coverage: float
    claim: tuple[str, ...]
    split: str = "held-out"
    compared: dict[str, Change] = {}
    tables: tuple[SummaryTable, ...] = ()
    tasks: int = 0
    lost: dict[str, int] = {}

    @property
    def errors(self) -> float:
        """The difference in units of its standard error; NaN without one."""
        if not self.difference.stderr > 0:
            return math.nan
        return self.difference.mean / self.difference.stderr

    @property
    def shown(self) -> bool:
        """Whether the difference is as rare by chance as `MIN_ERRORS` of a normal distribution."""
        tasks = self.difference.tasks
        if self.alike:
            # Of signs by lot all are the same so seldom.
            return 2.0 ** (1 - tasks) <= math.erfc(MIN_ERRORS / math.sqrt(2))
        return abs(self.errors) >= needed_errors(tasks)

    @property
    def alike(self) -> bool:
        """Whether several tasks changed, all of them by the same, so that no error is known."""
        return self.difference.stderr == 0 and self.difference.mean != 0

    @property
    def learned(self) -> bool:
        return self.shown and self.difference.mean > 0

    def verdict(self) -> str:
        """One sentence for people."""
        if math.isnan(self.difference.mean):
            said = "Nothing can be said: no task was scored both before and after"
            return f"{said}{self._uncovered()}."
        if not self.steps:
            said = f"Nothing was trained: {self.split} score {percent(self.before)}"
            return f"{said}{self._uncovered()}."
        change = (
            f"{self.split} score {percent(self.before)} -> {percent(self.after)},"
            f" {100 * self.difference.mean:+.1f}"
        )
        tasks = f"paired over {self.difference.tasks} task{'s' * (self.difference.tasks != 1)}"
        needed = f"{needed_errors(self.difference.tasks):.1f} standard errors would show one"
        if self.alike:
            change += f" points, {tasks} that changed alike"
            needed = "so few could by chance"
        elif math.isnan(self.errors):
            said = f"No rise is shown: {change} points, {tasks}; no error can be given"
            return f"{said}{self._uncovered()}."
        else:
            change += (
                f" ± {100 * self.difference.stderr:.1f} points ({self.errors:+.1f} standard errors,"
                f" {tasks})"
            )
        if self.shown:
            begins = "It learned" if self.learned else "It got worse"
            return f"{begins}: {change}{self._uncovered()}."
        return f"No rise is shown: {change}; {needed}{self._uncovered()}."

    def _uncovered(self) -> str:
        """What the verdict is not over, and why that makes it weak; "" where all was scored."""
        if not self.coverage < 1:
            return ""
        said = f"; coverage {self.coverage:.3f}"
        if self.lost:
            lost = ", ".join(f"{count:,} to {name}" for name, count in self.lost.items())
            said += f", trials were lost: {lost}"
        if self.difference.tasks < self.tasks:
            said += f", so that it is over {self.difference.tasks} of {self.tasks} tasks"
        return f"{said}; it is weak, since lost trials may differ from those that were scored"

    def text(self) -> str:
        """The verdict, what else changed, what fixed behaviours score, who took part, and what it
        means."""
        lines = [self.verdict()]
        lines += [capitalised(f"{name} {change}.") for name, change in self.compared.items()]
        for table in self.tables:
            points = ", ".join(_point(table.head, row) for row in table.rows)
            lines.append(f"{table.title}: {points}.")
        for name, score in self.baselines.items():
            lines.append(capitalised(f"{name} scores {100 * score:.1f} % here."))
        if self.services:
            said = "; ".join(f"{name}: {value}" for name, value in self.services.items())
            lines.append(capitalised(said))
        return "\n".join([*lines, *(f"- {sentence}" for sentence in self.claim)])


def lost_trials(*rows: EvalRow | None) -> dict[str, int]:
    """Trials of these evaluations that have no score, by the boundary that they were lost to, and
    `cancellation`."""
    found: Counter[str] = Counter()
    for row in rows:
        if row is not None:
            found.update(row.ledger["lost"])
            found["cancellation"] += row.ledger["cancelled"]
    return {name: count for name, count in sorted(found.items()) if count}


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One number of an evaluation.

    Attributes:
        name: `pass^2`, `avg@8`.
        estimate: With its error and the number of tasks that could tell.
        meaning: What it says, in a sentence; several measures may share one.
        low, high: With every lost trial failed, and passed; None where that is not known.
    """

    name: str
    estimate: Estimate
    meaning: str = ""
    low: float | None = None
    high: float | None = None


class EvalSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation of one policy showed.

    Attributes:
        benchmark: Which tasks: `tau-bench retail test`.
        policy: Which weights or endpoint.
        measures: What was found, the one that the verdict names first.
        trials: Trials of each task.
        baselines: What fixed behaviours score on the same tasks.
        coverage: Scored trials over those asked for.
        services: Who played with the policy, by role.
        lost_as_failed: The first measure had every lost trial failed; None if that is not known.
        compared: How another run of the same tasks did against this one, in words.
        replayed: Lost trials that were played again; the ledger holds them.
        claim: What the score means and what it does not, one sentence each.
        parts: The measures of each part of the tasks, such as a data set, where there are several.
        notes: What else is to say about the numbers, one sentence each.
        tables: What the benchmark shows beside its measures.
        totals: Sums of the episodes' numbers, lost ones included.
        usd: What the policy cost in US dollars; 0 without prices.
        unsampled: How many episodes never sampled a token, and what to do; empty if all did.
        measured: Whether a scored trial did.
    """

    kind: Literal["eval"] = "eval"
    benchmark: str
    policy: str
    measures: tuple[Measure, ...]
    trials: int
    baselines: dict[str, float]
    coverage: float
    services: dict[str, str]
    claim: tuple[str, ...] = ()
    replayed: int = 0
    lost_as_failed: float | None = None
    compared: str = ""
    parts: dict[str, tuple[Measure, ...]] = {}
    notes: tuple[str, ...] = ()
    tables: tuple[SummaryTable, ...] = ()
    totals: dict[str, float] = {}
    usd: float = 0.0
    unsampled: str = ""
    measured: bool = True

    def verdict(self) -> str:
        """One sentence for people."""
        if not self.measures or math.isnan(self.measures[0].estimate.mean):
            return f"Nothing can be said: no trial of {self.benchmark} was scored."
        if not self.measured:
            return f"Nothing was measured: {self.unsampled}."
        first = self.measures[0].estimate
        said = (
            f"{self.policy} has {self.measures[0].name} {percent(first)} on {self.benchmark}, over"
            f" {first.tasks} task{'s' * (first.tasks != 1)} and {first.trials} trials"
        )
        lost = round(100 * (1 - self.coverage), 1)
        if lost:
            said += f"; {lost:g} % of the trials were lost and are not in it"
            if self.lost_as_failed is not None:
                said += f", counted as failed they make it {100 * self.lost_as_failed:.1f} %"
        if self.replayed:
            said += f"; {self.replayed} lost trials were played again"
        if self.unsampled:
            said += f"; {self.unsampled}"
        return said + "."


AnySummary = Summary | EvalSummary


def capitalised(text: str) -> str:
    """The text as a sentence of its own; capitals within it stay."""
    return text[:1].upper() + text[1:]


def _point(head: Sequence[str], row: Sequence[str]) -> str:
    """A point of a curve with its tasks: `3200 95.8 ± 4.2 % (24 tasks)`."""
    said = f"{row[0]} {row[1]}"
    if "tasks" not in head:
        return said
    tasks = row[head.index("tasks")]
    return f"{said} ({tasks} task{'s' * (tasks != '1')})"


def percent(estimate: Estimate) -> str:
    """`46.9 ± 4.1 %`, without the error where there is none; where all tasks agree on 0 or 1, what
    is left to other tasks: `0.0 % (95 % below 24.2 %)`."""
    if math.isnan(estimate.mean):
        return "not known"
    bound = unanimous_bound(estimate)
    if bound is not None:
        side = "below" if estimate.mean == 0 else "above"
        return f"{100 * estimate.mean:.1f} % (95 % {side} {100 * bound:.1f} %)"
    error = "" if math.isnan(estimate.stderr) else f" ± {100 * estimate.stderr:.1f}"
    return f"{100 * estimate.mean:.1f}{error} %"


def _plain(estimate: Estimate) -> str:
    """`0.469 ± 0.041`, in as many digits as tell something."""
    error = "" if math.isnan(estimate.stderr) else f" ± {estimate.stderr:.2g}"
    return f"{estimate.mean:.3g}{error}"


def write_summary(folder: RunFolder, summary: AnySummary) -> None:
    """Writes summary.json whole or not at all. NaN becomes null; the verdict is in it in words."""
    row = {**msgspec.to_builtins(summary), "verdict": summary.verdict()}
    if isinstance(summary, Summary):
        row["learned"] = summary.learned
    write_whole(folder.summary, dump(row, indent=1) + "\n")


def read_summary(folder: RunFolder) -> AnySummary | None:
    """The run's summary, None while it has none.

    Raises:
        ConfigError: if the file is not one.
    """
    if not folder.summary.exists():
        return None
    with reading(folder.summary):
        text = folder.summary.read_bytes()
    row = _with_nan(parse_line(folder.summary, 1, text))
    try:
        if row.get("kind") == "eval":
            return msgspec.convert(row, EvalSummary)
        return msgspec.convert(row, Summary)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{folder.summary}: {error}; remove it to do without") from None


def _with_nan(row: dict[str, Any]) -> dict[str, Any]:
    """Numbers that JSON could not hold, back where an estimate or the coverage wants a float."""

    def estimate(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            key: math.nan if item is None and key in ("mean", "stderr") else item
            for key, item in value.items()
        }

    def measures(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [
            {key: estimate(item) for key, item in measure.items()}
            if isinstance(measure, dict)
            else measure
            for measure in value
        ]

    row = {
        key: measures(value) if key == "measures" else estimate(value) for key, value in row.items()
    }
    if isinstance(row.get("parts"), dict):
        row["parts"] = {name: measures(value) for name, value in row["parts"].items()}
    if isinstance(row.get("compared"), dict):
        row["compared"] = {
            name: {key: estimate(item) for key, item in change.items()}
            if isinstance(change, dict)
            else change
            for name, change in row["compared"].items()
        }
    if row.get("coverage", 0) is None:
        row["coverage"] = math.nan
    return row

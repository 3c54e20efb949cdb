"""What the report says, section by section: rows and charts from a read run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.ledger import LedgerRow
from turnwise.report.charts import ending_styles, plain
from turnwise.report.load import RunData, halving
from turnwise.report.times import duration
from turnwise.run.metrics import EvalRow, TrainRow
from turnwise.run.progress import number
from turnwise.run.summary import EvalSummary, Measure, Summary
from turnwise.run.summary import percent as percent_of
from turnwise.trials import Estimate, mean_score

MAX_ROWS = 200
"""Rows of a table over steps or tasks; more are thinned out evenly, and the page says so."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of which some may be left out: `total` is how many there were, all in `file`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: int
    file: str = "metrics.jsonl"

    @property
    def note(self) -> str:
        if len(self.rows) == self.total:
            return ""
        return f"{len(self.rows)} of {self.total} rows, evenly chosen; all are in {self.file}."


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One line of the accounting: of a step, an evaluation, or all training steps together."""

    name: str
    started: int
    finished: int
    stopped: int
    stopped_by: str
    lost: int
    lost_by: str
    cancelled: int
    coverage: str
    balances: bool

    @property
    def equation(self) -> str:
        """The line as the equation that it is."""
        return (
            f"{self.started:,} started = {self.finished:,} finished"
            f" + {self.stopped:,} stopped{self.stopped_by} + {self.lost:,} lost{self.lost_by}"
            f" + {self.cancelled:,} cancelled"
        )


@dataclass(frozen=True, slots=True)
class Trials:
    """A held-out task: its trials' scores first and last, None for lost, and the change."""

    task_id: str
    first: Sequence[float | None]
    last: Sequence[float | None]
    change: float

    @property
    def shift(self) -> str:
        """The change of the mean, in words."""
        return "-" if math.isnan(self.change) else f"{self.change:+.2f}"

    @property
    def mean(self) -> str:
        """Mean of the last trials."""
        return number(_mean(self.last), ".2f")


def status(run: RunData) -> str:
    """What the run has done so far, in one sentence."""
    seconds = sum(row.rollout_s + (row.train_s or 0.0) for row in run.trains)
    seconds += sum(row.eval_s for row in run.evals)
    done = [f"{len(run.evals)} evaluation{'s' * (len(run.evals) != 1)}"]
    planned = run.config.get("num_rollout")
    if run.trains or not isinstance(run.summary, EvalSummary):
        of = f" of {planned}" if isinstance(planned, int) and planned > run.steps else ""
        done.insert(0, f"{run.steps}{of} training step{'s' * (run.steps != 1 or bool(of))}")
    return f"{' and '.join(done)} in {duration(seconds)}."


def ledger_rows(run: RunData) -> dict[str, Any]:
    """The equation summed over training, each evaluation's, and each step's."""
    lines = [
        _ledger_line(
            f"evaluation after step {r.step}{f' on {r.dataset}' if r.dataset else ''}",
            r.ledger,
            r.coverage,
        )
        for r in run.evals
    ]
    steps = [_ledger_line(f"step {r.step}", r.ledger, r.coverage) for r in run.trains]
    total: LedgerRow = {"started": 0, "finished": 0, "stopped": {}, "lost": {}, "cancelled": 0}
    for ledger in (row.ledger for row in run.trains):
        total["started"] += ledger["started"]
        total["finished"] += ledger["finished"]
        total["cancelled"] += ledger["cancelled"]
        _add(total["stopped"], ledger["stopped"])
        _add(total["lost"], ledger["lost"])
    if run.trains:
        scored = total["finished"] + sum(total["stopped"].values())
        coverage = scored / total["started"] if total["started"] else None
        lines.insert(0, _ledger_line("all training steps", total, coverage))
    kept = thinned(steps)
    return {
        "lines": thinned(lines),
        "steps": kept,
        "steps_left_out": len(steps) - len(kept),
        "balances": all(line.balances for line in (*lines, *steps)),
    }


def ending_legend(run: RunData) -> list[tuple[str, str, str, str]]:
    """Style, label, episodes in training, episodes in evaluations."""
    trains: dict[str, int] = {}
    evals: dict[str, int] = {}
    for train in run.trains:
        _add(trains, train.endings)
    for evaluation in run.evals:
        _add(evals, evaluation.endings)
    return [
        (style, label, f"{trains.get(label, 0):,}", f"{evals.get(label, 0):,}")
        for label, style in ending_styles(run).items()
    ]


def number_rows(run: RunData) -> Table:
    """The numbers behind the curves."""
    fields: dict[str, Callable[[TrainRow], str]] = {
        "step": lambda row: f"{row.step}",
        "reward": lambda row: number(row.reward_mean, ".3f"),
        "± s.e.": lambda row: number(row.reward_stderr, ".3f"),
        "coverage": lambda row: number(row.coverage, ".3f"),
        "groups": lambda row: f"{row.groups_kept}/{row.groups}",
        "dropped": lambda row: counts(row.groups_dropped) or "-",
        "loss": lambda row: number(row.loss, ".4f"),
        "kl": lambda row: number(row.kl, ".2e"),
        "entropy": lambda row: number(row.entropy, ".3f"),
        "clipped": lambda row: number(row.clip_fraction, ".4f"),
        "grad norm": lambda row: number(row.grad_norm, ".3f"),
        "gap": lambda row: number(row.max_logprob_diff, ".1e"),
        "trained tokens": lambda row: number(row.trained_tokens, ",.0f"),
        "tokens/s": lambda row: number(row.tokens_per_s, ",.0f"),
        "rollout s": lambda row: f"{row.rollout_s:.1f}",
        "of it waiting": lambda row: number(row.waiting_s, ".1f"),
        "train s": lambda row: number(row.train_s, ".1f"),
        "lag p50/max ms": lambda row: (
            f"{number(row.loop_lag_p50_ms, '.1f')}/{number(row.loop_lag_max_ms, '.0f')}"
        ),
    }
    rows = [[form(row) for form in fields.values()] for row in thinned(run.trains)]
    return Table(list(fields), rows, len(run.trains))


def metric_rows(run: RunData) -> Table:
    """What the method counted: means over the episodes that have the number."""
    columns: dict[str, TrainRow | EvalRow] = {}
    for title, rows in (("evaluation", run.evals), ("step", run.trains)):
        if rows:
            columns[f"first {title}"] = rows[0]
        if len(rows) > 1:
            columns[f"last {title}"] = rows[-1]
    having: dict[str, int] = {}
    for row in run.rows:
        for name, found in row.metrics.items():
            having[name] = having.get(name, 0) + found.episodes
    shown = [
        [
            name.replace("_", " "),
            *(
                plain(row.metrics[name].mean) if name in row.metrics else "-"
                for row in columns.values()
            ),
            f"{episodes:,}",
        ]
        for name, episodes in having.items()
    ]
    return Table(["", *columns, "episodes that have it"], thinned(shown), len(shown))


def slime_rows(run: RunData) -> Table:
    """slime's own numbers: the first and the last value of each, and the range."""
    rows = []
    for name, points in sorted(run.slime.items()):
        values = [value for _, value in points]
        told = (values[0], values[-1], min(values), max(values))
        rows.append([name, *map(plain, told), f"{len(values):,}"])
    head = ("", "first", "last", "least", "largest", "values")
    return Table(head, rows, len(rows))


def service_rows(run: RunData) -> Table:
    """What the services had used in all, by the last row that says it."""
    latest = max(run.rows, key=lambda row: (row.step, row.kind == "eval"), default=None)
    totals = {} if latest is None else latest.service_totals
    rows = [(name.replace("_", " "), plain(value)) for name, value in totals.items()]
    return Table(("", "total"), rows, len(rows))


def task_rows(run: RunData) -> dict[str, Any]:
    """Held-out tasks one by one: the first evaluation and the last, the largest change first."""
    if not run.evals:
        return {"rows": [], "left_out": 0, "several": False}
    same = [row for row in run.evals if row.dataset == run.evals[0].dataset]
    first, last = same[0], same[-1]
    several = last is not first
    rows = []
    for task_id in dict.fromkeys((*first.scores, *last.scores)):
        before, after = first.scores.get(task_id, []), last.scores.get(task_id, [])
        change = _mean(after) - _mean(before)
        rows.append(Trials(task_id, before, after, change))
    if several:
        rows.sort(key=lambda row: -math.inf if math.isnan(row.change) else row.change, reverse=True)
    kept = thinned(rows)
    return {"rows": kept, "left_out": len(rows) - len(kept), "several": several}


def measure_rows(run: RunData) -> Table:
    """What an evaluation found, each with its error, and the tasks that could tell.

    Without a summary it is the mean score of what has been played.
    """
    measures: Sequence[Measure] = ()
    if isinstance(run.summary, EvalSummary):
        measures = run.summary.measures
    elif run.evals:
        measures = (Measure(name="score", estimate=mean_score(run.evals[-1].scores)),)
    return _measures(measures)


def part_tables(run: RunData) -> dict[str, Table]:
    """What an evaluation found on each part of its tasks."""
    if not isinstance(run.summary, EvalSummary):
        return {}
    return {name: _measures(measures) for name, measures in run.summary.parts.items()}


def more_tables(run: RunData) -> list[tuple[str, Sequence[str], Table]]:
    """Title, sentences and rows of what a summary shows beside its measures."""
    tables = () if run.summary is None else run.summary.tables
    return [
        (one.title, one.before, Table(one.head, thinned(one.rows), len(one.rows), "summary.json"))
        for one in tables
    ]


def meanings(run: RunData) -> list[str]:
    """What the measures say, each sentence once."""
    if not isinstance(run.summary, EvalSummary):
        return []
    return list(dict.fromkeys(m.meaning for m in run.summary.measures if m.meaning))


def cards(run: RunData) -> list[tuple[str, str]]:
    """The numbers at the top, by name."""
    summary = run.summary
    if isinstance(summary, Summary):
        return [
            ("before", percent_of(summary.before)),
            ("after", percent_of(summary.after)),
            ("difference", _difference(summary.difference)),
            *((name, str(change)) for name, change in summary.compared.items()),
            *_baselines(summary.baselines),
            ("coverage", number(summary.coverage, ".1%")),
            ("tasks × trials", f"{summary.difference.tasks} × {summary.trials}"),
            *summary.services.items(),
            ("seed", f"{summary.seed}"),
        ]
    if isinstance(summary, EvalSummary):
        first = Estimate(math.nan, math.nan, 0, 0)
        if summary.measures:
            first = summary.measures[0].estimate
        return [
            *((measure.name, percent_of(measure.estimate)) for measure in summary.measures[:1]),
            *_baselines(summary.baselines),
            ("coverage", number(summary.coverage, ".1%")),
            ("tasks × trials", f"{first.tasks} × {summary.trials}"),
            *summary.services.items(),
        ]
    made: list[tuple[str, str]] = []
    for row in run.evals[-1:]:
        value = Estimate(
            _nan(row.reward_mean), _nan(row.reward_stderr), len(row.scores), row.ledger["started"]
        )
        made = [
            (f"score after step {row.step}", percent_of(value)),
            *_baselines(row.baselines),
            ("coverage", number(row.coverage, ".1%")),
        ]
    return made + list(dict.fromkeys(pair for row in run.rows for pair in row.services.items()))


def _baselines(values: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(name, number(value, ".1%")) for name, value in values.items()]


def thinned(rows: Sequence[Any]) -> list[Any]:
    """At most `MAX_ROWS` of the rows in their order, evenly, the first and the last among them."""
    if len(rows) <= MAX_ROWS:
        return list(rows)
    return [rows[place] for place in sorted(halving(range(len(rows)))[:MAX_ROWS])]


def counts(values: Mapping[str, int]) -> str:
    """`user 3, engine 1`."""
    return ", ".join(f"{name} {count:,}" for name, count in values.items() if count)


def _measures(measures: Sequence[Measure]) -> Table:
    """Bounds have columns where a lost trial could change something."""
    open_ = any(measure.low != measure.high for measure in measures)
    rows = [
        (
            measure.name,
            number(measure.estimate.mean, ".1%"),
            number(measure.estimate.stderr, ".1%"),
            *([number(measure.low, ".1%"), number(measure.high, ".1%")] if open_ else []),
            f"{measure.estimate.tasks:,}",
            f"{measure.estimate.trials:,}",
        )
        for measure in measures
    ]
    bounds = ("lost = failed", "lost = passed") if open_ else ()
    head = ("", "value", "standard error", *bounds, "tasks", "scored trials")
    return Table(head, rows, len(rows))


def _ledger_line(name: str, row: LedgerRow, coverage: float | None) -> LedgerLine:
    stopped, lost = sum(row["stopped"].values()), sum(row["lost"].values())
    return LedgerLine(
        name=name,
        started=row["started"],
        finished=row["finished"],
        stopped=stopped,
        stopped_by=f" ({counts(row['stopped'])})" if stopped else "",
        lost=lost,
        lost_by=f" ({counts(row['lost'])})" if lost else "",
        cancelled=row["cancelled"],
        coverage=number(coverage, ".1%"),
        balances=row["started"] == row["finished"] + stopped + lost + row["cancelled"],
    )


def _add(totals: dict[str, int], row: Mapping[str, int]) -> None:
    for name, count in row.items():
        totals[name] = totals.get(name, 0) + count


def _difference(value: Estimate) -> str:
    if math.isnan(value.mean):
        return "not known"
    error = "" if math.isnan(value.stderr) else f" ± {100 * value.stderr:.1f}"
    return f"{100 * value.mean:+.1f}{error} points"


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


def _mean(scores: Sequence[float | None]) -> float:
    scored = [score for score in scores if score is not None]
    return sum(scored) / len(scored) if scored else math.nan

"""What the trials of an evaluation say: written, drawn on the page and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from turnwise.config import ConfigError
from turnwise.evaluation.benchmark import Benchmark
from turnwise.evaluation.compare import Comparison, Other, compare, write_comparison
from turnwise.evaluation.estimates import Attempt, Table, avg_at_k
from turnwise.evaluation.folder import EvalFolder
from turnwise.evaluation.journal import TrialRow, account, by_task, totals
from turnwise.evaluation.spread import single_runs
from turnwise.evaluation.tasks import ALL, parts
from turnwise.ledger import Ledger
from turnwise.printable import tell
from turnwise.report import write_report
from turnwise.run.folder import forget
from turnwise.run.metrics import EvalRow, Picture, as_row, compared_numbers, metric_means
from turnwise.run.progress import number
from turnwise.run.summary import (
    EvalSummary,
    Measure,
    SummaryTable,
    changes,
    percent,
    write_summary,
)
from turnwise.stopping import never_sampled
from turnwise.trials import TrialError

READ, WRITTEN = "prompt_tokens", "sampled_tokens"
"""What a conversation counts of its policy."""


def conclude(
    folder: EvalFolder,
    benchmark: Benchmark,
    *,
    seed: int = 0,
    prices: tuple[float, float] = (0.0, 0.0),
    other: Other | None = None,
    name: str | None = None,
    tables: Sequence[SummaryTable] = (),
    notes: Sequence[str] = (),
) -> EvalSummary:
    """Writes metrics.jsonl, summary.json and the page, and prints what they say.

    Args:
        seed: Of the bootstrap.
        prices: US dollars per million tokens that the policy read and wrote.
        other: The evaluation to compare with.
        name: Of this one beside it; the folder's if None.
        tables, notes: Beside the benchmark's own.

    Raises:
        ConfigError: a trial is missing or does not belong here, or the other one is of other tasks.
    """
    attempts, rows = folder.journal.attempts(), folder.journal.rows()
    about, names = folder.about, [task.id for task in folder.tasks]
    try:
        table = by_task(rows, names, about.k)
    except TrialError as error:
        raise ConfigError(f"{folder.journal.path}: {error}; go on with --resume") from None
    ledger, services = account(attempts), folder.services()
    comparison = None
    if other is not None:
        name = name or folder.run.path.resolve().name
        config = folder.run.read_config()
        comparison = compare(
            other, name, config, folder.tasks, table, players=about.players, seed=seed
        )
        write_comparison(folder, comparison)
    _write_metrics(folder, table, attempts, ledger, services, other)
    shown = list(tables)
    if comparison is not None and other is not None:
        shown = [comparison.table(), _changes(folder, table, other), *shown]
    sums = totals(attempts)
    usd = (sums.get(READ, 0.0) * prices[0] + sums.get(WRITTEN, 0.0) * prices[1]) / 1e6
    summary = EvalSummary(
        **_measured(folder, benchmark, table),
        benchmark=about.title,
        policy=f"{about.policy} ({about.method})",
        trials=about.k,
        baselines=about.baselines,
        coverage=_coverage(table),
        services=about.players,
        claim=about.claim,
        replayed=len(attempts) - len(rows),
        compared=comparison.verdict() if comparison is not None else "",
        notes=(*_notes(table, sums, usd, services), *_compared(folder, rows, other), *notes),
        tables=(*shown, *benchmark.tables(folder.tasks, rows)),
        totals=sums,
        usd=usd,
        unsampled=never_sampled([row.first_prompt for row in rows], "--max-context-len"),
        measured=any(row.first_prompt is None for row in rows if row.score is not None),
    )
    write_summary(folder.run, summary)
    report = write_report(folder.run.path)
    for line in told(summary, ledger, attempts, comparison):
        tell(line)
    print(f"{folder.run.summary}, {report}")
    return summary


def _measured(folder: EvalFolder, benchmark: Benchmark, table: Table) -> dict[str, Any]:
    """The measures of all tasks and, where there are several, of each part."""
    by_part = {
        part: benchmark.measures({task: table[task] for task in mine}, folder.about.k)
        for part, mine in parts(folder.tasks).items()
    }
    main = by_part.pop(ALL) if ALL in by_part else next(iter(by_part.values()))
    return {
        "measures": main,
        "parts": by_part if len(by_part) > 1 else {},
        "lost_as_failed": avg_at_k(table).low,
    }


def told(
    summary: EvalSummary,
    ledger: Ledger,
    attempts: Sequence[TrialRow],
    comparison: Comparison | None = None,
) -> list[str]:
    """The results for a terminal."""
    lines = [comparison.verdict()] if comparison is not None else []
    lines += [summary.verdict(), *_measure_lines("", summary.measures)]
    for part, measures in summary.parts.items():
        lines += [f"{part}:", *_measure_lines("  ", measures)]
    if comparison is not None:
        lines += _difference_lines(comparison)
    lines.append(f"coverage {summary.coverage:.3f}; {ledger.equation()}")
    lines.append("endings: " + _counts(_endings(attempts)))
    if decided := Counter(row.by for row in attempts if row.by):
        lines.append("graded by: " + _counts(decided))
    lines += [f"{name} scores {score:.3f}" for name, score in summary.baselines.items()]
    lines += [f"{name}: {value}" for name, value in summary.services.items()]
    return [*lines, *summary.notes, *(f"- {sentence}" for sentence in summary.claim)]


def _difference_lines(comparison: Comparison) -> list[str]:
    lines = []
    for part, found in comparison.differences.items():
        if len(comparison.differences) > 1:
            lines.append(f"{part}: {found}")
        if found.worst != found.best:
            lines.append(
                f"  with lost trials against or for the change: {100 * found.worst:+.1f} to"
                f" {100 * found.best:+.1f} points"
            )
    return lines


def _measure_lines(indent: str, measures: Sequence[Measure]) -> list[str]:
    width = max((len(one.name) for one in measures), default=0)
    most = max((one.estimate.tasks for one in measures), default=0)
    lines = []
    for one in measures:
        said = f"{indent}{one.name:<{width}}  {percent(one.estimate)}"
        if one.low is not None and one.high is not None and one.low != one.high:
            said += f"  [{100 * one.low:.1f} to {100 * one.high:.1f} % with lost trials failed"
            said += " or passed]"
        if one.estimate.tasks < most:
            said += f"  ({one.estimate.tasks} of {most} tasks could tell)"
        lines.append(said)
    return lines


def _notes(
    table: Table,
    sums: Mapping[str, float],
    usd: float,
    services: Mapping[str, float],
) -> list[str]:
    notes = []
    if (spread := single_runs(table)).runs > 1:
        notes.append(spread.sentence())
    if READ in sums:
        others = sum(value for name, value in services.items() if name.endswith("/usd"))
        money = f", ${usd:.4f}" if usd else ""
        frozen = f"; frozen models: ${others:.4f}" if others else ""
        notes.append(
            f"policy: {sums[READ]:,.0f} tokens read, {sums.get(WRITTEN, 0.0):,.0f} written"
            f"{money}{frozen}"
        )
    return notes


def _compared(folder: EvalFolder, rows: Sequence[TrialRow], other: Other | None) -> list[str]:
    """What else than the score changed against the other evaluation, a sentence each."""
    if other is None:
        return []
    keys = {task.id: task.key for task in folder.tasks}
    found = compared_numbers(
        folder.about.compared, ((keys[row.task_id], row.score, row.metrics) for row in rows)
    )
    named = changes(other.row.compared, found)
    return [f"{name} {change}, against {other.name}" for name, change in named.items()]


def _pictures(folder: EvalFolder, other: Other | None) -> list[Picture]:
    """The method's, with the place of the other evaluation."""
    found = []
    for picture in folder.about.pictures:
        points = dict(picture.points)
        if other is not None and {picture.x, picture.y} <= other.row.metrics.keys():
            means = other.row.metrics
            points[other.name] = (means[picture.x].mean, means[picture.y].mean)
        found.append(msgspec.structs.replace(picture, points=points))
    return found


def _changes(folder: EvalFolder, table: Table, other: Other) -> SummaryTable:
    """Each task's mean score on both sides, the largest change first."""

    def mean(attempts: Sequence[Attempt]) -> float | None:
        scores = [one.score for one in attempts if one.score is not None]
        return sum(scores) / len(scores) if scores else None

    rows = []
    for task in folder.tasks:
        before, after = mean(other.scores[task.key]), mean(table[task.id])
        change = None if before is None or after is None else after - before
        rows.append((change, task.id, before, after))
    rows.sort(key=lambda row: (row[0] is None, -(row[0] or 0.0)))
    return SummaryTable(
        title="Task by task",
        head=("task", other.name, "here", "change"),
        rows=tuple(
            (name, number(before, ".2f"), number(after, ".2f"), number(change, "+.2f"))
            for change, name, before, after in rows
        ),
    )


def _write_metrics(
    folder: EvalFolder,
    table: Table,
    attempts: Sequence[TrialRow],
    ledger: Ledger,
    services: Mapping[str, float],
    other: Other | None,
) -> None:
    mean = avg_at_k(table).estimate
    forget(folder.run.metrics)
    folder.run.append_metrics(
        as_row(
            EvalRow(
                step=0,
                reward_mean=mean.mean,
                reward_stderr=mean.stderr,
                coverage=_coverage(table),
                ledger=ledger.as_dict(),
                endings=_endings(attempts),
                metrics=metric_means(row.metrics for row in attempts),
                baselines=folder.about.baselines,
                services=folder.about.players,
                service_totals=dict(services),
                eval_s=sum(row.wall_s for row in attempts),
                scores={name: [one.score for one in row] for name, row in table.items()},
                compared=compared_numbers(
                    folder.about.compared,
                    ((row.task_id, row.score, row.metrics) for row in folder.journal.rows()),
                ),
                pictures=_pictures(folder, other),
            )
        )
    )


def _endings(attempts: Sequence[TrialRow]) -> dict[str, int]:
    return dict(Counter(row.ending.label for row in attempts).most_common())


def _coverage(table: Table) -> float:
    scored = [one.score is not None for row in table.values() for one in row]
    return sum(scored) / len(scored)


def _counts(values: Mapping[str, int]) -> str:
    """`finished 8, lost:engine 1`."""
    return ", ".join(f"{name} {count:,}" for name, count in values.items()) or "none"

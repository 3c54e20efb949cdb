"""What is made of saved outputs without a model: they are graded again, or two runs compared."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, Ending
from turnwise.evaluation.benchmark import Benchmark, Grade
from turnwise.evaluation.compare import LIKE_FOR_LIKE, check_same_tasks, read_other
from turnwise.evaluation.estimates import RIGHT
from turnwise.evaluation.folder import About, EvalFolder
from turnwise.evaluation.journal import TrialRow, by_task
from turnwise.evaluation.options import SharedOptions
from turnwise.evaluation.results import conclude
from turnwise.evaluation.saved import Saved, SavedRun
from turnwise.evaluation.spread import spread_of
from turnwise.evaluation.tasks import TaskRow, check_tasks
from turnwise.rows import Row
from turnwise.run.progress import number
from turnwise.run.summary import SummaryTable
from turnwise.trials import TrialError

MAX_PLACES = 1_000_000
"""Trials that are graded, or noted as lost because they were not saved."""
NOT_SAVED = Ending.lost(BoundaryError(Boundary.ENVIRONMENT, "not saved"))
"""Of an output that the other tasks have and this one lacks."""
_MARKER_AT_END = re.compile(r"<\|[^\s<>|]{1,64}\|>\s*$|</s>\s*$")


@dataclass(frozen=True, slots=True)
class _Graded:
    """An output with its row as graded now."""

    saved: Saved
    row: TrialRow


def compare_runs(benchmark: Benchmark, options: SharedOptions) -> int:
    """`--compare A B`: B's results, against A's, in a folder of their own; returns the exit code.

    Raises:
        ConfigError: a folder is no evaluation, is unfinished, or has other tasks.
    """
    assert options.compare is not None
    before, after = options.compare
    found = EvalFolder.open(after)
    other = read_other(before, "--compare")
    check_same_tasks(other, found.tasks)
    try:
        by_task(found.journal.rows(), [task.id for task in found.tasks], found.about.k)
    except TrialError as error:
        raise ConfigError(f"{after}: {error}; go on with --resume") from None
    name = after.resolve().name
    if name == other.name:
        name = f"{after.resolve().parent.name}/{name}"
        other = replace(other, name=f"{before.resolve().parent.name}/{other.name}")
    rows, config = found.journal.attempts(), found.run.read_config()
    folder = EvalFolder.create(
        options.run_dir, f"compare-{benchmark.name or 'runs'}", config, found.about, found.tasks
    )
    folder.journal.append(*rows)
    conclude(folder, benchmark, seed=options.seed, other=other, name=name)
    return 0


def rescore(benchmark: Benchmark, options: SharedOptions) -> int:
    """`--rescore PATHS`: saved outputs graded again; returns the exit code.

    Raises:
        ConfigError: naming what can't be read, or the benchmark grades no outputs.
        PreflightError: what grades can't be used.
    """
    if not (benchmark.grades or benchmark.regrades):
        raise ConfigError(
            "--rescore: the score here is the method's own reward, and nothing that is saved can be"
            " graded again"
        )
    runs = benchmark.saved(options)
    name = options.rescore[0].resolve().stem if len(options.rescore) == 1 else "saved"
    tasks = _tasks(benchmark, runs, name.replace("#", "-"))
    numbers, k = _trial_numbers(runs)
    if k * len(tasks) > MAX_PLACES:
        raise ConfigError(
            f"--rescore: {k:,} trials of {len(tasks):,} tasks are more than {MAX_PLACES:,}; is a"
            " trial's number wrong, or are these several evaluations?"
        )
    graded = asyncio.run(_grade(benchmark, runs, numbers, tasks))
    kept = list(tasks.values())
    about = About(
        title=name,
        policy="saved outputs",
        method="graded again",
        k=k,
        claim=(
            "Saved outputs were graded; no model was asked.",
            "An output that other tasks have and one lacks counts as lost.",
            *dict.fromkeys(fact for run in runs for fact in run.facts),
        ),
    )
    config = options.model_dump(mode="json") | dict.fromkeys(LIKE_FOR_LIKE)
    folder = EvalFolder.create(
        options.run_dir, f"rescore-{benchmark.name or 'runs'}", config, about, kept
    )
    saved = [one.row for run in graded for one in run]
    folder.journal.append(*saved, *_lacking(graded, kept, k))
    conclude(
        folder,
        benchmark,
        seed=options.seed,
        tables=[_runs_table(runs, graded)],
        notes=_sentences(graded),
    )
    return 0


def _tasks(benchmark: Benchmark, runs: Sequence[SavedRun], part: str) -> dict[str, TaskRow]:
    """The tasks by question.

    Raises:
        ConfigError: a question stands with two labels.
    """
    tasks: dict[str, TaskRow] = {}
    for run in runs:
        for saved in run.outputs:
            known = tasks.get(saved.question)
            row = Row(
                prompt=saved.question,
                label=saved.label,
                id=known.id if known else f"{part}/{len(tasks) + 1}",
                where=saved.where,
            )
            task = benchmark.task(row)
            if known is not None and known.key != task.key:
                raise ConfigError(
                    f"{saved.where}: a question has the labels {known.label!r} and"
                    f" {task.label!r}: {saved.question[:60]!r}"
                )
            tasks.setdefault(saved.question, task)
    check_tasks(list(tasks.values()))
    return tasks


def _trial_numbers(runs: Sequence[SavedRun]) -> tuple[list[list[int]], int]:
    """Which trial of its task each output is, and how many there are.

    A single run keeps its numbers if it has some. Trial j is run j where no run asks a question
    twice; otherwise outputs are counted.

    Raises:
        ConfigError: a number stands twice at a question.
    """
    if len(runs) == 1:
        known = [saved.trial for saved in runs[0].outputs if saved.trial is not None]
        if len(known) == len(runs[0].outputs):
            places = Counter((saved.question, saved.trial) for saved in runs[0].outputs)
            (question, trial), count = places.most_common(1)[0]
            if count > 1:
                raise ConfigError(
                    f"{runs[0].name}: trial {trial} at {question[:60]!r} stands {count} times"
                )
            return [known], max(known) + 1
    single = all(len({saved.question for saved in run.outputs}) == len(run.outputs) for run in runs)
    if single:
        return [[place] * len(run.outputs) for place, run in enumerate(runs)], len(runs)
    counts: Counter[str] = Counter()
    numbers: list[list[int]] = []
    for run in runs:
        numbers.append([])
        for saved in run.outputs:
            numbers[-1].append(counts[saved.question])
            counts[saved.question] += 1
    return numbers, max(counts.values())


async def _grade(
    benchmark: Benchmark,
    runs: Sequence[SavedRun],
    numbers: Sequence[Sequence[int]],
    tasks: Mapping[str, TaskRow],
) -> list[list[_Graded]]:
    async def one(saved: Saved, trial: int) -> _Graded:
        task, grade, ending = tasks[saved.question], Grade(score=None), saved.ending
        if ending.by_policy:
            try:
                grade = await benchmark.grade(task, saved.output)
                if grade.score is None:
                    ending = Ending.lost(BoundaryError(Boundary.JUDGE, grade.error))
            except BoundaryError as error:
                ending = Ending.lost(error)
        return _Graded(saved, _row(task, trial, ending, grade, saved.output))

    try:
        await benchmark.open(list(tasks.values()))
        return [
            list(await asyncio.gather(*map(one, run.outputs, places)))
            for run, places in zip(runs, numbers, strict=True)
        ]
    finally:
        await benchmark.close()


def _row(task: TaskRow, trial: int, ending: Ending, grade: Grade, output: str) -> TrialRow:
    return TrialRow(
        task_id=task.id,
        trial=trial,
        score=grade.score,
        kind=ending.kind,
        limit=ending.limit,
        boundary=ending.boundary,
        error=ending.error,
        output=output,
        vote=grade.vote,
        by=grade.by,
        info=dict(grade.info),
    )


def _lacking(
    graded: Sequence[Sequence[_Graded]], tasks: Sequence[TaskRow], k: int
) -> list[TrialRow]:
    done = {(one.row.task_id, one.row.trial) for run in graded for one in run}
    return [
        _row(task, trial, NOT_SAVED, Grade(score=None), "")
        for task in tasks
        for trial in range(k)
        if (task.id, trial) not in done
    ]


def _sentences(graded: Sequence[Sequence[_Graded]]) -> list[str]:
    """How saved and new scores go together, for people."""
    outputs = [one for run in graded for one in run]
    agreement = Counter(f"{_word(one.saved.score)}, now {_word(one.row.score)}" for one in outputs)
    told = [
        "as saved and as graded now: "
        + "; ".join(f"{name} {count:,}" for name, count in agreement.most_common())
    ]
    if markers := sum(bool(_MARKER_AT_END.search(one.saved.output)) for one in outputs):
        told.append(f"{markers:,} outputs end with the text of a special token")
    saved = [_mean([one.saved.score for one in run]) for run in graded]
    now = [_mean([one.row.score for one in run]) for run in graded]
    for name, means in (("as saved", saved), ("graded now", now)):
        spread = spread_of([mean for mean in means if mean is not None])
        if spread.runs > 1:
            told.append(f"{name}: {spread.sentence()}")
    return told


def _runs_table(runs: Sequence[SavedRun], graded: Sequence[Sequence[_Graded]]) -> SummaryTable:
    rows = tuple(
        (
            run.name,
            f"{len(outputs):,}",
            number(_mean([one.saved.score for one in outputs]), ".1%"),
            number(_mean([one.row.score for one in outputs]), ".1%"),
        )
        for run, outputs in zip(runs, graded, strict=True)
    )
    return SummaryTable(
        title="Saved runs",
        before=("The mean score of each, as it was saved and as it is graded now.",),
        head=("run", "outputs", "saved", "now"),
        rows=rows,
    )


def _word(score: float | None) -> str:
    if score is None:
        return "none"
    return "right" if score >= RIGHT else "wrong"


def _mean(scores: Sequence[float | None]) -> float | None:
    scored = [score for score in scores if score is not None]
    return sum(scored) / len(scored) if scored else None

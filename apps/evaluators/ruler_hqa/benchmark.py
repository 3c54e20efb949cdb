"""RULER-HQA and RULER's own tasks as a benchmark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator
from turnwise.answers import normalise
from turnwise.config import ConfigError, nearest
from turnwise.evaluation.benchmark import AnyMethod, Benchmark, Grade, question_of
from turnwise.evaluation.journal import TrialRow
from turnwise.evaluation.options import MAX_TRIALS, SharedOptions
from turnwise.evaluation.tasks import TaskRow
from turnwise.rollout import derive_seed
from turnwise.rows import Row
from turnwise.rows.contexts import EvidenceOrder
from turnwise.rows.reader import read_rows
from turnwise.run.summary import SummaryTable, percent
from turnwise.trials import estimate_over_tasks

from apps.evaluators.ruler_hqa.full_context import FullContext
from apps.evaluators.ruler_hqa.items import generated, gold_answers, read_items
from apps.evaluators.ruler_hqa.scoring import prediction, score, string_match
from apps.evaluators.ruler_hqa.tasks import TASKS, make_item

HQA = "hqa"
BEHIND = 1.25
"""Documents of the generated world, over those of the longest context."""
SCORES = ("gold_in", "em", "f1", "sub_em")
NAMES = ("gold in prediction", "EM", "F1", "sub_EM")
PLACES = 5
"""Fifths of a context by which the place of the last gold document is told."""


class RulerHqaOptions(SharedOptions):
    """Options of the evaluator; the method has a section of its own."""

    task: str = HQA
    """`hqa`, or a task of RULER: niah_single_1, vt, cwe, fwe and others."""
    data: tuple[str, ...] = ()
    """Items of one length each, NAME=FILE: .json as MemAgent publishes them, or rows of :prepare;
    generated ones where not given."""
    documents: tuple[int, ...] = Field(default=(50, 100, 200), min_length=1)
    """Lengths of generated contexts, in documents of about 140 tokens; of RULER's tasks, in
    sentences or words."""
    items: int = Field(default=128, ge=1)
    """Generated items of each length."""
    hops: int = Field(default=2, ge=2, le=4)
    """Documents that a generated question leads through."""
    evidence_order: EvidenceOrder = "random"
    """In which these stand: random, forward (as they are needed) or reverse."""
    trials: int = Field(default=4, ge=1, le=MAX_TRIALS)
    """Trials of each item."""

    @field_validator("task")
    @classmethod
    def _task_exists(cls, name: str) -> str:
        if name not in (HQA, *TASKS):
            raise ValueError(f"unknown task {name!r}; {nearest(name, (HQA, *TASKS))}")
        return name

    @property
    def k(self) -> int:
        """See `SharedOptions`."""
        return self.trials


class RulerHqa(Benchmark):
    """Gold-in-prediction leads; EM, F1 and sub_EM stand beside it, each by length."""

    Options = RulerHqaOptions
    name = "ruler_hqa"
    description = (
        "Evaluates reading of long texts: RULER-HQA and RULER's tasks from a few thousand to a"
        " million tokens and beyond, by length, with errors clustered by item."
    )
    method = "memagent"
    methods: ClassVar = {"full": FullContext}
    measured = ("avg@k",)
    grades = True

    def method_defaults(self, options: RulerHqaOptions) -> Mapping[str, Any]:
        """As many sections as a text has."""
        return {"max_chunks": None} if options.method in ("", "memagent") else {}

    def check(self, options: RulerHqaOptions, method: AnyMethod) -> None:
        """See `Benchmark`."""
        if options.data and options.task != HQA:
            raise ConfigError(f"--data: the items of task {options.task} are generated")

    def rows(self, options: RulerHqaOptions, method: AnyMethod) -> Sequence[Row]:
        """See `Benchmark`."""
        return list(_rows(options))

    def task(self, row: Row) -> TaskRow:
        """See `Benchmark`: the length is the part, and stands in the question as well."""
        answers = gold_answers(row.label, row.where)
        if not isinstance(row.label, Mapping) or "task" not in row.label:
            for answer in answers:
                if not normalise(answer):
                    raise ConfigError(f"{row.where}: the answer {answer!r} says nothing")
        part = str(row.metadata.get("part", ""))
        asked = question_of(row)
        question = f"[{part}] {asked}" if part else asked
        return TaskRow(
            id=row.id,
            part=part,
            key=f"{part}\n{asked}\n{answers}",
            question=question,
            label=row.label,
        )

    def title(self, options: RulerHqaOptions, method: AnyMethod) -> str:
        """See `Benchmark`."""
        made = "" if options.data else ", generated"
        return f"RULER {options.task}{made}"

    async def grade(self, task: TaskRow, output: str) -> Grade:
        """See `Benchmark`: gold in prediction; of RULER's own tasks the share of references."""
        golds = gold_answers(task.label, task.id)
        if isinstance(task.label, Mapping) and "task" in task.label:
            return Grade(score=string_match(output, golds), by="references")
        said = prediction(output)
        found = score(said, golds)
        return Grade(
            score=found.gold_in,
            vote=normalise(said) or None,
            by="empty" if not normalise(said) else "words",
            info={"prediction": said, **asdict(found)},
        )

    def claim(
        self, options: RulerHqaOptions, method: AnyMethod, tasks: Sequence[TaskRow]
    ) -> tuple[str, ...]:
        """See `Benchmark`."""
        told = [
            "The score is the mean of all trials, never the best of several; an empty answer is"
            " wrong, and a request that failed stays in the coverage and the bounds.",
            'sub_EM takes either text within the other for right, which "a" nearly always is; it'
            " is shown for comparison with published numbers.",
        ]
        if isinstance(method, FullContext):
            told.append("Full context: of a text that does not fit, head and tail are kept.")
        if not options.data:
            told.append(
                "The documents are generated and the prompts are ours: the score is not comparable"
                " with published ones on HotpotQA or RULER."
            )
        per_length = len(tasks) // max(1, len({task.part for task in tasks}))
        if per_length <= 128 and options.trials == 1:
            told.append(
                f"{per_length} items a length and one trial: gaps under ten points mean nothing."
            )
        return tuple(told)

    def tables(
        self, tasks: Sequence[TaskRow], rows: Sequence[TrialRow]
    ) -> tuple[SummaryTable, ...]:
        """Every score and cost by length, and the score by the place of the last gold document."""
        part = {task.id: task.part for task in tasks}
        tables = [_costs(part, rows)]
        if any("em" in row.info for row in rows):
            tables.insert(0, _scores(part, rows))
        places = {
            task.id: max(task.label["places"])
            for task in tasks
            if isinstance(task.label, Mapping) and task.label.get("places")
        }
        return (*tables, *([_places(places, rows)] if places else []))


def _rows(options: RulerHqaOptions) -> Iterator[Row]:
    if options.data:
        for one in options.data:
            name, equals, path = one.partition("=")
            if not equals:
                raise ConfigError(f"--data {one}: write NAME=FILE, such as 50=eval_50.json")
            yield from _file(name, Path(path))
        return
    size = int(BEHIND * max(options.documents)) + 64
    for length in options.documents:
        if options.task == HQA:
            yield from generated(
                length,
                options.items,
                seed=options.seed,
                hops=options.hops,
                order=options.evidence_order,
                size=size,
            )
        else:
            for number in range(options.items):
                seed = derive_seed(options.seed, options.task, length, number)
                yield make_item(options.task, length, seed, number)


def _file(name: str, path: Path) -> Iterator[Row]:
    if path.suffix == ".json":
        yield from read_items(path, name)
        return
    for row in read_rows(path, input_key="prompt", label_key="label"):
        metadata = {**row.metadata, "part": name}
        yield Row(row.prompt, row.label, metadata, f"{name}/{row.id}", row.where)


def _by_part(part: Mapping[str, str], rows: Sequence[TrialRow]) -> Mapping[str, Sequence[TrialRow]]:
    found: dict[str, list[TrialRow]] = {name: [] for name in part.values()}
    for row in rows:
        if row.score is not None:
            found[part[row.task_id]].append(row)
    return found


def _scores(part: Mapping[str, str], rows: Sequence[TrialRow]) -> SummaryTable:
    shown = []
    for name, mine in _by_part(part, rows).items():
        cells = []
        for key in SCORES:
            values: dict[str, list[float]] = defaultdict(list)
            for row in mine:
                values[row.task_id].append(float(row.info.get(key, 0.0)))
            cells.append(_percent(values))
        items = len({row.task_id for row in mine})
        long = sum(bool(row.info.get("long")) for row in mine)
        shown.append((name, f"{items}", *cells, f"{long}"))
    return SummaryTable(
        title="Scores by length",
        before=("Mean over items, ± one standard error clustered by item.",),
        head=("length", "items", *NAMES, "much longer than gold"),
        rows=tuple(shown),
    )


def _percent(values: Mapping[str, Sequence[float]]) -> str:
    """The mean over items of their trials' mean; nothing where there is none."""
    means = [sum(of) / len(of) for of in values.values() if of]
    if not means:
        return ""
    return percent(estimate_over_tasks(means, sum(map(len, values.values()))))


def _costs(part: Mapping[str, str], rows: Sequence[TrialRow]) -> SummaryTable:
    shown = []
    for name, mine in _by_part(part, rows).items():
        means = [
            sum(row.metrics.get(key) or 0.0 for row in mine) / max(len(mine), 1)
            for key in ("turns", "prompt_tokens", "sampled_tokens")
        ]
        seconds = sum(row.wall_s for row in mine) / max(len(mine), 1)
        shown.append((name, *(f"{mean:,.0f}" for mean in means), f"{seconds:.1f}"))
    return SummaryTable(
        title="Cost of a trial by length",
        head=("length", "turns", "tokens read", "tokens written", "seconds"),
        rows=tuple(shown),
    )


def _places(places: Mapping[str, float], rows: Sequence[TrialRow]) -> SummaryTable:
    """By fifths of the context."""
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.task_id in places and row.score is not None:
            fifth = min(int(places[row.task_id] * PLACES), PLACES - 1)
            found[fifth][row.task_id].append(row.score)
    shown = []
    for fifth in range(PLACES):
        low, high = (100 * (fifth + step) // PLACES for step in (0, 1))
        shown.append((f"{low} to {high} %", f"{len(found[fifth])}", _percent(found[fifth])))
    return SummaryTable(
        title="Score by the place of the last gold document",
        head=("place in the context", "items", "score"),
        rows=tuple(shown),
    )

"""Problems with one right answer as a benchmark: a model asked once, or a method with its loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from turnwise.answers.labels import read_answer
from turnwise.command import PreflightError
from turnwise.episode import BoundaryError
from turnwise.evaluation.benchmark import AnyMethod, Benchmark, Grade, question_of
from turnwise.evaluation.journal import TrialRow
from turnwise.evaluation.options import MAX_TRIALS, SharedOptions
from turnwise.evaluation.single import AskedOnce, Messages
from turnwise.evaluation.tasks import TaskRow
from turnwise.rows import Row
from turnwise.run.summary import SummaryTable

from apps.evaluators.aime.grading import Grader
from apps.evaluators.aime.problems import SAMPLE, Keys, data_set, digest, left_out, load_data

CLAIM_K = 32
"""Attempts that a claim on AIME needs."""
MAX_VOTES = 3
"""Answers that the table of problems names."""


class AimeOptions(SharedOptions):
    """Options of the evaluator of problems with one right answer."""

    data: tuple[str, ...] = Field(default=(SAMPLE,), min_length=1)
    """Data sets: `sample`, or .jsonl and .parquet files as PATH or NAME=PATH."""
    input_key: str = "prompt"
    """The question's name in a row."""
    label_key: str = "label"
    """The right answer's name in a row."""
    metadata_key: str = "metadata"
    """The name of what else a method is given of a row."""
    n_samples_per_eval_prompt: int = Field(default=4, ge=1, le=MAX_TRIALS)
    """Attempts at each problem, the k of avg@k."""
    temperature: float = Field(default=0.7, ge=0)
    """Temperature of the policy, whatever the method; 0 is greedy."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Nucleus mass of the policy, whatever the method."""
    max_response_len: int = Field(default=4096, ge=1)
    """Most tokens of one sampled turn."""
    concurrency: int = Field(default=64, ge=1)
    """Most attempts in flight."""

    @property
    def k(self) -> int:
        """See `SharedOptions`."""
        return self.n_samples_per_eval_prompt


class Plain(AskedOnce):
    """Each problem is one question to the model."""

    def task(self, row: Row) -> Messages:
        """See `Method`."""
        return [{"role": "user", "content": plain_prompt(question_of(row))}]


def plain_prompt(question: str) -> str:
    """The one message of a plain model.

    How to give the answer is added, unless the question says it already.
    """
    if "\\boxed" in question:
        return question
    return (
        f"{question.rstrip()}\n\nReason step by step. Then state the final answer once, inside"
        " \\boxed{}, as the last thing you write."
    )


class Aime(Benchmark):
    """One grader for all, so that a method and a plain model differ in nothing else."""

    Options = AimeOptions
    name = "aime"
    description = (
        "Evaluates a model or a method on AIME, or on any problems with one right answer: avg@k,"
        " pass@k and maj@k with errors clustered by problem, and coverage. Compares two"
        " evaluations, and grades saved outputs again."
    )
    method = "plain"
    methods: ClassVar = {"plain": Plain}
    measured = ("avg@k", "maj@k", "pass@k")
    grades = True

    def __init__(self) -> None:
        self._grader: Grader | None = None

    def rows(self, options: AimeOptions, method: AnyMethod) -> Sequence[Row]:
        """See `Benchmark`."""
        keys = Keys(options.input_key, options.label_key, options.metadata_key)
        return load_data(options.data, keys)

    def task(self, row: Row) -> TaskRow:
        """See `Benchmark`: the label is the answer that is compared."""
        question, answer = question_of(row), read_answer(row.label, row.where)
        return TaskRow(
            id=row.id,
            part=data_set(row),
            key=digest(question, answer),
            question=question,
            label=answer,
        )

    def title(self, options: AimeOptions, method: AnyMethod) -> str:
        """See `Benchmark`."""
        named = (name.partition("=")[0] if "=" in name else name for name in options.data)
        return " + ".join(named)

    async def open(self, tasks: Sequence[TaskRow]) -> None:
        """Formulas are asked for only where a label is no whole number."""
        self._grader = Grader()
        if all(str(task.label).lstrip("-").isdecimal() for task in tasks):
            return
        try:
            await self._grader.check()
        except BoundaryError as error:
            raise PreflightError(f"grading: {error}") from None

    async def close(self) -> None:
        """See `Benchmark`."""
        grader, self._grader = self._grader, None
        if grader is not None:
            await grader.close()

    async def grade(self, task: TaskRow, output: str) -> Grade:
        """See `Benchmark`."""
        assert self._grader is not None, "open comes first"
        return await self._grader.grade(task.question, output, str(task.label))

    def claim(self, options: Any, method: AnyMethod, tasks: Sequence[TaskRow]) -> tuple[str, ...]:
        """See `Benchmark`."""
        if isinstance(method, Plain):
            told = ["Plain: each problem is one question to the model, and its answer is graded."]
        else:
            told = [
                f"Method {options.method}: its frozen models and tools have their share in the"
                " score. The same method with the untrained policy is the baseline of a training;"
                " a plain model under the same sampling that of the method."
            ]
        if options.base_url is not None:
            told.append("Draws repeat as far as the endpoint keeps to the seed that it is sent.")
        if pictures := left_out(options.data):
            told.append(f"{pictures} problems with a picture were left out.")
        if any(task.part == SAMPLE for task in tasks):
            told.append("The built-in sample is generated; its score says nothing about AIME.")
        if options.k < CLAIM_K:
            told.append(f"k is {options.k}; a claim on AIME needs avg@{CLAIM_K}.")
        told.append("Where this score chose a checkpoint, other problems have to measure it.")
        return tuple(told)

    def tables(
        self, tasks: Sequence[TaskRow], rows: Sequence[TrialRow]
    ) -> tuple[SummaryTable, ...]:
        """Each problem's label with the answers that were given most."""
        votes: dict[str, Counter[str]] = {task.id: Counter() for task in tasks}
        for row in rows:
            if row.score is not None:
                votes[row.task_id][row.vote or "no answer"] += 1
        shown = []
        for task in tasks:
            most = votes[task.id].most_common(MAX_VOTES)
            given = ", ".join(f"{text[:40]} ×{count}" for text, count in most)
            shown.append((task.id, str(task.label)[:40], given))
        head = ("problem", "label", "most votes")
        return (SummaryTable(title="Answers", head=head, rows=tuple(shown)),)

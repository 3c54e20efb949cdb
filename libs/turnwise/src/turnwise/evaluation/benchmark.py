"""What a benchmark adds to `turnwise.evaluation`: rows, scoring, and what a score means.

    class Sums(Benchmark):
        name, method, measured = "sums", "my_agent:MyAgent", ("avg@k", "pass^k")
        def rows(self, options, method): ...

    sys.exit(run_command(partial(evaluate_benchmark, Sums()), sys.argv[1:]))

`Benchmark` itself evaluates any method by its own reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turnwise.config import ConfigError
from turnwise.episode import Episode
from turnwise.evaluation.estimates import Table
from turnwise.evaluation.journal import TrialRow
from turnwise.evaluation.measures import measure
from turnwise.evaluation.options import EvalOptions, SharedOptions
from turnwise.evaluation.saved import SavedRun, read_saved
from turnwise.evaluation.tasks import TaskRow
from turnwise.method import Method, method_name
from turnwise.own_code import own_rows
from turnwise.policy import AnyPolicy, EndpointPolicy
from turnwise.rows import Row
from turnwise.rows.files import split_slice
from turnwise.rows.reader import read_rows
from turnwise.run.summary import Measure, SummaryTable

AnyMethod = Method[Any, Any]
SHIPPED = "shipped"
"""`--hf-checkpoint shipped` is the policy that comes with a method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What an output is worth.

    Attributes:
        score: None where nobody could tell: the trial is lost to the judge.
        vote: The answer in a normal form, by which equal answers are found; None without one.
        by: What decided, for counting.
        info: JSON-able facts for the trial's row.
        error: Why nobody could tell.
    """

    score: float | None
    vote: str | None = None
    by: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


class Benchmark:
    """Tasks with what a score on them means.

    Attributes:
        Options: Of its command.
        name: Of its command and its run folders, `eval-NAME`; the method's where "".
        description: For --help.
        method: Played where --method names none; it is needed where "".
        methods: Methods of its own, by the names that --method takes.
        measured: Names of `turnwise.evaluation.measures`, the first for the verdict.
        grades: Whether `grade` scores the final text of an episode, whatever the method's own
            reward is; that is kept as the metric `method_score` then.
        regrades: Whether `grade` takes what `output` keeps, where the method's own reward is the
            score: what is saved can be graded again.
    """

    Options: ClassVar[type[SharedOptions]] = EvalOptions
    name: ClassVar[str] = ""
    description: ClassVar[str] = (
        "Evaluates a method: scores with errors clustered by task, coverage, and who took part."
    )
    method: ClassVar[str] = ""
    methods: ClassVar[Mapping[str, type[AnyMethod]]] = {}
    measured: ClassVar[tuple[str, ...]] = ("avg@k", "pass@k")
    grades: ClassVar[bool] = False
    regrades: ClassVar[bool] = False

    def method_defaults(self, options: Any) -> Mapping[str, Any]:
        """Options of the method, by field name, that are other here than elsewhere."""
        return {}

    def check(self, options: Any, method: AnyMethod) -> None:
        """Raises ConfigError where the options do not go together with the method's."""
        return None

    def rows(self, options: Any, method: AnyMethod) -> Sequence[Row]:
        """The rows to evaluate on.

        Raises:
            ConfigError: naming file and line, or the split.
        """
        if options.prompt_data is None:
            return own_rows(method, options.task_split, "--task-split")
        return list(
            read_rows(
                options.prompt_data,
                input_key=options.input_key,
                label_key=options.label_key,
                metadata_key=options.metadata_key,
            )
        )

    def task(self, row: Row) -> TaskRow:
        """What the run folder keeps of a row; its metadata's `part` is what it is counted with.

        Raises:
            ConfigError: nothing that is written for it could be graded; names `row.where`.
        """
        part = row.metadata.get("part", "")
        return TaskRow(
            id=row.id, part=f"{part}", key=row.id, question=question_of(row), label=row.label
        )

    def title(self, options: Any, method: AnyMethod) -> str:
        """Which tasks these are: `tau-bench retail test`."""
        if options.split:
            return f"{method_name(type(method))} {options.split}"
        return split_slice(options.prompt_data)[0].stem

    def claim(self, options: Any, method: AnyMethod, tasks: Sequence[TaskRow]) -> tuple[str, ...]:
        """What the score means and what it does not, one sentence each."""
        if not options.split:
            return ()
        return method.claim(options.split, shipped=options.hf_checkpoint == SHIPPED)

    async def baselines(
        self, method: AnyMethod, tasks: Mapping[str, Any], policy: AnyPolicy
    ) -> Mapping[str, float]:
        """What fixed behaviours score on these tasks: `{"doing nothing": 0.05}`.

        Args:
            method: Opened.
            tasks: As of `Method.task`, by name.
            policy: The one that is evaluated.
        """
        if self.grades or isinstance(policy, EndpointPolicy):
            return {}
        return await method.baselines(tasks, policy.profile.tokenizer, policy.profile)

    async def open(self, tasks: Sequence[TaskRow]) -> None:
        """Makes ready what grades. Raises PreflightError if it can't be used."""
        return None

    async def close(self) -> None:
        """Closes what `open` and `grade` opened."""
        return None

    async def grade(self, task: TaskRow, output: str) -> Grade:
        """What a final text is worth, where `grades` is set. Raises on nothing a model wrote.

        Raises:
            BoundaryError: it can't be told; the trial is lost there.
        """
        raise NotImplementedError

    def output(self, episode: Episode) -> str | None:
        """What a trial's row keeps of an episode whose score is the method's, for `grade`; None
        where it can't be graded again."""
        return None

    def saved(self, options: Any) -> Sequence[SavedRun]:
        """The runs that `--rescore` names, before `open`.

        Raises:
            ConfigError: naming file and place, what was found and what is expected.
        """
        return [run for path in options.rescore for run in read_saved(path)]

    def measures(self, table: Table, k: int) -> tuple[Measure, ...]:
        """What is reported of all tasks, and of each part."""
        return measure(self.measured, table, k)

    def tables(
        self, tasks: Sequence[TaskRow], rows: Sequence[TrialRow]
    ) -> tuple[SummaryTable, ...]:
        """What is shown beside the measures, such as costs.

        Args:
            rows: What stands for each trial.
        """
        return ()


def question_of(row: Row) -> str:
    """The row's text, or the last message of its user."""
    if isinstance(row.prompt, str):
        return row.prompt
    for message in reversed(row.prompt):
        if message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""


def with_ids(rows: Sequence[Row]) -> Mapping[str, Row]:
    """Rows by their names.

    Raises:
        ConfigError: two have one name.
    """
    found: dict[str, Row] = {}
    for row in rows:
        if row.id in found:
            raise ConfigError(f"{row.where or row.id}: two rows have the id {row.id!r}")
        found[row.id] = row
    return found

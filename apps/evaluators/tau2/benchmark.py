"""τ²-bench as a benchmark: the official splits and rewards, and who took part in a score."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from taubench.tau2 import (
    TrajectoryMismatch,
    default_task_set,
    evaluate,
    noop_baseline,
    transfer_baseline,
)
from taubench.tau2.shown import for_judge
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, Episode
from turnwise.evaluation.benchmark import AnyMethod, Benchmark, Grade
from turnwise.evaluation.journal import TrialRow
from turnwise.evaluation.options import MAX_TRIALS, SharedOptions
from turnwise.evaluation.saved import SavedRun
from turnwise.evaluation.tasks import TaskRow
from turnwise.judge import AssertionJudge
from turnwise.models import JudgeModelConfig, Models, make_models
from turnwise.policy import AnyPolicy
from turnwise.rows import Row
from turnwise.run.progress import number
from turnwise.run.summary import SummaryTable

from apps.evaluators.tau2.protocol import lacking
from apps.evaluators.tau2.trajectories import (
    ENV,
    SOLO,
    dumped,
    key_of,
    loaded,
    read_runs,
    task_of,
)

JUDGE = "judge"
NO_JUDGE = (
    "the reward hangs on sentences that a judge must find true: give --judge.base-url and"
    " --judge.model, or --nl-assertions met"
)


class Tau2EvalOptions(SharedOptions):
    """Options of the τ²-bench evaluator; domain, version of the tasks and user are tau's own."""

    task_split: Literal["base", "test", "train", "full", "small", "rest"] = "base"
    """Upstream's splits; base is train and test, and what is published. rest is full without base.
    """
    trials: int = Field(default=4, ge=1, le=MAX_TRIALS)
    """Trials of each task; pass^1 to pass^trials are reported."""
    max_response_len: int = Field(default=1024, ge=1)
    """Most tokens of one sampled turn."""
    judge: JudgeModelConfig | None = None
    """The model that tells NL assertions; retail v1.0 alone needs one."""
    judge_cache: Path | None = None
    """JSONL file of the judge's verdicts, which are used again."""
    nl_assertions: Literal["judge", "met"] = "judge"
    """Have NL assertions judged, or take them as met, which is said beside the score."""
    strict: bool = False
    """Close the known holes of the official grading; the score is another one then."""

    @property
    def k(self) -> int:
        """See `SharedOptions`."""
        return self.trials

    @property
    def split(self) -> str:
        """See `SharedOptions`."""
        return self.task_split


class Tau2(Benchmark):
    """pass^k beside what doing nothing and handing over at once score; the reward is tau's own."""

    Options = Tau2EvalOptions
    name = "tau2"
    description = (
        "Evaluates a policy on τ²-bench: pass^1..k with errors clustered by task, coverage, costs,"
        " and what doing nothing scores. Grades saved conversations again, the package's own too."
    )
    method = "tau"
    measured = ("pass^k", "pass@k")
    regrades = True

    def __init__(self) -> None:
        self._options = Tau2EvalOptions.model_construct()
        self._models: Models | None = None
        self._judge: AssertionJudge | None = None

    def method_defaults(self, options: Tau2EvalOptions) -> Mapping[str, Any]:
        """Retail, the offline user, and how is graded."""
        judge = options.judge
        return {
            "env": "tau2-retail",
            "user": {"strategy": "offline"},
            "keep_trajectory": True,
            "nl_assertions": options.nl_assertions,
            "strict": options.strict,
            "judge": None if judge is None else judge.model_dump(exclude_unset=True),
            "judge_cache": options.judge_cache,
        }

    def check(self, options: Tau2EvalOptions, method: AnyMethod) -> None:
        """See `Benchmark`."""
        tau = method.options
        if not str(getattr(tau, "env", "")).startswith(ENV):
            raise ConfigError(f"--env {tau.env}: is not of τ²-bench; tau-bench has tau:eval")
        if tau.user.strategy == "human" and options.concurrency != 1:
            raise ConfigError("--user.strategy human needs --concurrency 1: one person, one talk")
        self._options = options

    def rows(self, options: Tau2EvalOptions, method: AnyMethod) -> Sequence[Row]:
        """See `Benchmark`."""
        rows: Sequence[Row] = method.rows(options.task_split)
        return rows

    def task(self, row: Row) -> TaskRow:
        """See `Benchmark`: the version of the tasks stands in the key."""
        label = row.label if row.label is not None else _label(row.metadata)
        task_of(label, row.where or row.id)
        key = key_of(label)
        return TaskRow(id=key, key=f"{key} {label['content_hash']}", question=key, label=label)

    def title(self, options: Tau2EvalOptions, method: AnyMethod) -> str:
        """See `Benchmark`: the version of the tasks travels with every score."""
        tau = method.options
        env = tau.env.removeprefix(ENV)
        version = tau.task_set or default_task_set(env.removesuffix(SOLO))
        return f"τ²-bench {env} {options.task_split}, tasks {version}"

    def claim(
        self, options: Tau2EvalOptions, method: AnyMethod, tasks: Sequence[TaskRow]
    ) -> tuple[str, ...]:
        """See `Benchmark`."""
        missing = lacking(options, method.options)
        return (
            *method.claim(options.task_split, shipped=False),
            "Of what the public leaderboard asks for, this run lacks: " + "; ".join(missing) + ".",
        )

    async def baselines(
        self, method: AnyMethod, tasks: Mapping[str, Any], policy: AnyPolicy
    ) -> Mapping[str, float]:
        """See `Benchmark`."""
        return _baselines(job.task for job in tasks.values())

    def output(self, episode: Episode) -> str | None:
        """See `Benchmark`: the conversation."""
        messages = episode.info.get("trajectory")
        termination = episode.info.get("termination")
        if messages is None or not episode.ending.by_policy:
            return None
        # The policy ran into a limit of its own that the package does not know.
        return dumped(messages, termination or "max_steps", solo=bool(episode.info.get("solo")))

    def saved(self, options: Tau2EvalOptions) -> Sequence[SavedRun]:
        """See `Benchmark`: folders of evaluations, and Results files of the package."""
        self._options = options
        runs = read_runs(options.rescore)
        if options.judge is not None and options.nl_assertions == "judge":
            self._models = make_models({JUDGE: options.judge})
            self._judge = AssertionJudge(self._models[JUDGE], cache=options.judge_cache)
        labels = {one.question: one.label for run in runs for one in run.outputs}
        found = _baselines(task_of(label, name)[0] for name, label in labels.items())
        facts = (
            "; ".join(f"{name} scores {score:.3f}" for name, score in found.items()),
            "Graded strictly." if options.strict else "Graded as the package does.",
            f"NL assertions: {self._judged_by()}.",
        )
        return [SavedRun(run.name, run.outputs, (*run.facts, *facts)) for run in runs]

    async def open(self, tasks: Sequence[TaskRow]) -> None:
        """See `Benchmark`: asks the judge, where it grades."""
        if self._models is None:
            return
        try:
            await self._models.check()
        except BoundaryError as error:
            raise PreflightError(f"judge: no answer: {error}") from None

    async def close(self) -> None:
        """See `Benchmark`."""
        models, self._models, self._judge = self._models, None, None
        if models is not None:
            await models.close()

    async def grade(self, task: TaskRow, output: str) -> Grade:
        """See `Benchmark`: the conversation is played again on a fresh state."""
        found, _ = task_of(task.label, task.id)
        try:
            history, termination, solo = loaded(output)
            score = evaluate(found, history, termination, solo=solo, strict=self._options.strict)
        except (ValueError, TrajectoryMismatch) as error:
            raise BoundaryError(Boundary.ENVIRONMENT, str(error)) from None
        if score.needs_nl:
            assert found.criteria is not None
            assertions = found.criteria.nl_assertions
            if self._options.nl_assertions == "met":
                score = score.with_nl([True] * len(assertions))
            elif self._judge is None:
                return Grade(score=None, error=NO_JUDGE)
            else:
                shown = for_judge(history)
                score = score.with_nl(await self._judge.check(shown, assertions))
        parts = {f"part/{name}": value for name, value in score.components.items()}
        return Grade(score=score.reward, by="replay", info={"termination": termination, **parts})

    def tables(
        self, tasks: Sequence[TaskRow], rows: Sequence[TrialRow]
    ) -> tuple[SummaryTable, ...]:
        """What a trial costs, and which parts of the score were met."""
        return tuple(table for table in (self._costs(rows), _parts(rows)) if table is not None)

    def _judged_by(self) -> str:
        if self._options.nl_assertions == "met":
            return "taken as met"
        judge = self._options.judge
        return "unknown, no judge was given" if judge is None else f"told by {judge.model}"

    def _costs(self, rows: Sequence[TrialRow]) -> SummaryTable | None:
        played = [row for row in rows if row.metrics]
        if not played:
            return None
        options = self._options

        def mean(name: str) -> float:
            return sum(row.metrics.get(name) or 0.0 for row in played) / len(played)

        read, written = mean("prompt_tokens"), mean("sampled_tokens")
        usd = (read * options.read_price + written * options.write_price) / 1e6
        lines = [
            ("policy", f"{read:,.0f}", f"{written:,.0f}", f"{usd:.4f}"),
            *(
                (
                    who,
                    f"{mean(f'{who}_read_tokens'):,.0f}",
                    f"{mean(f'{who}_written_tokens'):,.0f}",
                    f"{mean(f'{who}_usd'):.4f}",
                )
                for who in ("user", "judge")
            ),
        ]
        total = usd + mean("user_usd") + mean("judge_usd")
        return SummaryTable(
            title="Costs of a trial",
            before=(
                f"Means over {len(played):,} trials, with {mean('turns'):.1f} turns of the policy,"
                f" {mean('steps'):.1f} steps and {_wall(played):.1f} s each; in"
                f" all ${total:.4f}.",
            ),
            head=("who", "tokens read", "tokens written", "US dollars"),
            rows=tuple(lines),
        )


def _wall(rows: Sequence[TrialRow]) -> float:
    return sum(row.wall_s for row in rows) / len(rows)


def _label(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: metadata.get(name) for name in ("env", "task_set", "task_id", "content_hash")}


def _baselines(tasks: Iterable[Any]) -> dict[str, float]:
    known = list(tasks)
    return {
        "doing nothing": noop_baseline(known),
        "transferring at once": transfer_baseline(known),
    }


def _parts(rows: Sequence[TrialRow]) -> SummaryTable | None:
    """How often each part of the score was met, of the trials in which it was looked at."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in {**row.info, **row.metrics}.items():
            if name.startswith("part/") and value is not None:
                found[name.removeprefix("part/")].append(float(value))
    if not found:
        return None
    return SummaryTable(
        title="Parts of the score",
        before=("Of the conversations that ended by a stop; the reward is the product.",),
        head=("part", "trials", "met"),
        rows=tuple(
            (name, f"{len(values):,}", number(sum(values) / len(values), ".1%"))
            for name, values in sorted(found.items())
        ),
    )

"""A method that is scored on what the policy says, and a benchmark that grades outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from turnwise.command import PreflightError, run_command
from turnwise.config import ConfigError
from turnwise.conversation import Conversation
from turnwise.episode import Boundary, BoundaryError, Ending, Episode
from turnwise.evaluation.benchmark import Benchmark, Grade
from turnwise.evaluation.command import evaluate_method
from turnwise.evaluation.folder import About, EvalFolder
from turnwise.evaluation.journal import TrialRow
from turnwise.evaluation.tasks import TaskRow
from turnwise.method import Method, MethodOptions, Services
from turnwise.policy import AnyPolicy
from turnwise.rollout import Rollout
from turnwise.rows import Row
from turnwise.run.metrics import Picture

Json = dict[str, Any]


class EchoOptions(MethodOptions):
    wish: str = ""
    """What the policy is asked to say, where its task does not tell."""
    lose: tuple[str, ...] = ()
    """Rollouts that are lost to the sandbox."""
    down: bool = False
    """Whether a service of the method does not answer."""


class Echo(Method[EchoOptions, Row]):
    """Scores 1 where the policy says the label."""

    Options = EchoOptions
    name = "echo"
    compared = ("right",)
    may_change = frozenset({"lose"})
    seen: ClassVar[list[Row]] = []
    played: ClassVar[list[str]] = []
    interrupt: ClassVar[str] = ""
    opened = closed = 0

    def task(self, row: Row) -> Row:
        type(self).seen.append(row)
        return row

    def rows(self, split: str) -> Sequence[Row]:
        if split != "held-out":
            raise ConfigError(f"split {split}: echo has held-out")
        return [Row(prompt=word, label=word, id=f"held-out/{word}") for word in ("a", "b", "c")]

    async def open(self, services: Services) -> None:
        if self.options.down:
            raise PreflightError("wish: nobody answers")
        type(self).opened += 1

    async def close(self) -> None:
        type(self).closed += 1

    async def baselines(self, tasks: Any, tokenizer: Any, profile: Any) -> Mapping[str, float]:
        return {"silence": 0.0}

    def pictures(self) -> Sequence[Picture]:
        points = {"silence": (0.0, 0.0)}
        return [Picture(title="Right by tokens", x="sampled_tokens", y="right", points=points)]

    def claim(self, split: str, *, shipped: bool) -> tuple[str, ...]:
        return (f"Echoes of {split}.",)

    def players(self) -> Mapping[str, str]:
        return {"wall": "stone"} if self.opened else {}

    def metrics(self) -> Mapping[str, float]:
        return {"wall/requests": 1.0}

    async def run(self, rollout: Rollout[Row], policy: AnyPolicy) -> Episode:
        if rollout.rollout_id == self.interrupt:
            raise KeyboardInterrupt
        type(self).played.append(rollout.rollout_id)
        async with Conversation(policy, rollout) as talk:
            turn = await talk.ask([{"role": "user", "content": str(rollout.task.prompt)}])
            if rollout.rollout_id in self.options.lose:
                raise BoundaryError(Boundary.SANDBOX, "no process")
            said = getattr(turn, "text", "")
            right = said == (self.options.wish or str(rollout.task.label))
            metrics = {"right": float(right)}
            return talk.episode(turn.ending or Ending.finished(), float(right), metrics=metrics)


class Words(Benchmark):
    """Grades the final text: right is the label, whatever the method says."""

    name, method = "words", "evaluation.fakes:Echo"
    measured = ("avg@k", "maj@k", "pass@k")
    grades = True

    async def grade(self, task: TaskRow, output: str) -> Grade:
        if output == "unclear":
            return Grade(score=None, error="who knows")
        return Grade(score=float(output == str(task.label)), vote=output, by="text")


LOST = Ending.lost(BoundaryError(Boundary.ENGINE, "gone"))


def write_run(folder: Path, scores: dict[str, list[float | None]], **config: Any) -> Path:
    """A folder as an evaluation leaves it before it sums up; tasks are named `<part>/<key>`."""
    k = max(len(row) for row in scores.values())
    settings = {"temperature": 0.7, "top_p": 0.95, **config}
    tasks = []
    for number, name in enumerate(scores):
        part, _, key = name.partition("/")
        tasks.append(
            TaskRow(id=f"{part}/{number}", part=part, key=key, question=key, label="right")
        )
    about = About(title="words", policy="p", method="m", k=k)
    run = EvalFolder.create(folder, "eval", settings, about, tasks)
    for task, row in zip(tasks, scores.values(), strict=True):
        for trial, score in enumerate(row):
            ending = LOST if score is None else Ending.finished()
            run.journal.append(
                TrialRow(
                    task_id=task.id,
                    trial=trial,
                    score=score,
                    kind=ending.kind,
                    boundary=ending.boundary,
                    error=ending.error,
                    output="right" if score else "wrong",
                )
            )
    return folder


def echo(folder: Path, *more: str) -> int:
    """Two trials of each task; the exit code."""
    fixed = ["--hf-checkpoint", "p", "--trials", "2", "--run-dir", str(folder)]
    return run_command(lambda argv: evaluate_method(Echo, argv), [*fixed, *more])


def summary(folder: Path) -> Json:
    """summary.json."""
    data: Json = json.loads((folder / "summary.json").read_text())
    return data


def means(folder: Path) -> dict[str, float]:
    """The measures by name."""
    return {one["name"]: one["estimate"]["mean"] for one in summary(folder)["measures"]}


def rows(folder: Path, name: str = "trials.jsonl") -> list[Json]:
    """A file of JSON lines."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]

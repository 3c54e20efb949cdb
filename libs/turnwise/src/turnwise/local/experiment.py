"""What a run trains and evaluates: a method with its tasks, its policy and its texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import tokendelta
import toolparse

from turnwise.config import ConfigError
from turnwise.engine import Engine
from turnwise.engine.torch_engine import TorchEngine
from turnwise.local.options import SHIPPED, TrainOptions
from turnwise.local.policy import LoadedPolicy
from turnwise.method import Method, Services, method_name
from turnwise.objective import Objective
from turnwise.own_code import own_rows, row_task
from turnwise.policy import Policy
from turnwise.rows import Row

TaskT = TypeVar("TaskT")


class SampleCount(Protocol):
    """Counts of an engine."""

    @property
    def sampled_tokens(self) -> int:
        """Since its start."""
        ...

    @property
    def busy_s(self) -> float:
        """Seconds in which it sampled, since its start."""
        ...


class TrainedEngine(Engine, Protocol):
    """An engine whose weights a trainer updates."""

    @property
    def stats(self) -> SampleCount:
        """What it has done."""
        ...

    @property
    def weight_version(self) -> int:
        """How often the weights were updated."""
        ...

    @property
    def restarts(self) -> int:
        """How often it broke and was started again; turns under way were lost."""
        ...

    @property
    def failure(self) -> str:
        """Why it samples no more, whatever is done; "" while it does."""
        ...

    async def open(self, logs: Path) -> None:
        """Starts what it needs, which may write into `logs`.

        Raises:
            PreflightError: it can't be started.
        """
        ...

    async def clear(self) -> None:
        """Forgets what it has cached."""
        ...

    async def update_weights(self, model: Any) -> None:
        """Takes over the weights of a transformers model."""
        ...

    async def release_memory(self) -> None:
        """Gives memory of the device back until `resume_memory`; samples nothing meanwhile."""
        ...

    async def resume_memory(self) -> None:
        """Takes it again; weights must be updated before the next turn."""
        ...


MakeEngine = Callable[[TrainOptions, LoadedPolicy], TrainedEngine]


def make_engine(options: TrainOptions, policy: LoadedPolicy) -> TrainedEngine:
    """The engine that the options name."""
    if options.engine == "sglang":
        from turnwise.local.serving import make_sglang_engine

        return make_sglang_engine(options, policy)
    context = options.rollout_max_context_len
    return TorchEngine(policy.model, rows=options.engine_rows, context=context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Generic[TaskT]):
    """
    Attributes:
        method: Opened; plays the episodes.
        policy: Sampled in training; evaluation changes its sampling alone.
        engine: The policy's.
        train_tasks: The prompts, by name.
        eval_tasks: The held-out ones, by name.
        split: The name of `eval_tasks`.
        claim: What a rise on these tasks shows, and what it does not: one sentence each.
        baselines: What fixed behaviours score on `eval_tasks`: `{"doing nothing": 0.05}`.
        curves: What is played once at the end: tasks by name, by point, by what the points differ
            in.
    """

    method: Method[Any, TaskT]
    policy: Policy
    engine: TrainedEngine
    train_tasks: Mapping[str, TaskT]
    eval_tasks: Mapping[str, TaskT]
    split: str
    claim: tuple[str, ...] = ()
    baselines: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Mapping[str, TaskT]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the method."""
        return method_name(type(self.method))


def objective(options: TrainOptions, method: Method[Any, Any]) -> Objective:
    """How the loss is averaged, whichever way it was asked for.

    Raises:
        ConfigError: it was asked for in two ways that differ.
    """
    asked: Objective | None = method.options.objective
    if options.calculate_per_token_loss:
        if asked not in (None, "global-token-mean"):
            raise ConfigError(
                "--calculate-per-token-loss is the objective global-token-mean; found objective"
                f" {asked}: leave one of them out"
            )
        return "global-token-mean"
    return asked or "rollout-token-mean"


async def open_experiment(
    options: TrainOptions,
    method: Method[Any, TaskT],
    loaded: LoadedPolicy,
    engine_of: MakeEngine = make_engine,
) -> Experiment[TaskT]:
    """Reads the tasks, opens the method's services and scores its baselines.

    Raises:
        ConfigError: the tasks or the policy do not fit the options.
        PreflightError: a service does not answer.
    """
    profile = loaded.profile(list(method.tools()))
    train, evaluation, split = read_tasks(options, method)
    _check_room(options, method, profile, [*train.values(), *evaluation.values()])
    engine = engine_of(options, loaded)
    policy = Policy(
        engine=engine,
        profile=profile,
        max_context_tokens=options.rollout_max_context_len,
        tool_format=tool_format(method, loaded.tokenizer),
        sampling=options.sampling(),
        on_rewrite=method.options.on_rewrite,
    )
    try:
        await method.open(Services(policy=policy))
        baselines = await method.baselines(evaluation, loaded.tokenizer, profile)
    except BaseException:
        await method.close()
        await engine.close()
        raise
    own = options.prompt_data is None
    curves = method.curves() if own else {}
    shipped = options.hf_checkpoint == SHIPPED
    return Experiment(
        method=method,
        policy=policy,
        engine=engine,
        train_tasks=train,
        eval_tasks=evaluation,
        split=split,
        claim=method.claim(split, shipped=shipped) if own else (),
        baselines=baselines,
        curves={name: _points(method, rows) for name, rows in curves.items()},
    )


def tool_format(method: Method[Any, Any], tokenizer: Any) -> str:
    """The method's own, else what the chat template says, which is told; qwen25 without tools."""
    given: str | None = method.options.tool_format
    if given is not None or not method.tools():
        return given or "qwen25"
    found = toolparse.detect(str(tokenizer.chat_template))
    if found is None:
        raise ConfigError(
            "tool-format: the chat template tells none; name it, one of"
            f" {', '.join(toolparse.formats())}"
        )
    return found


def read_tasks(
    options: TrainOptions, method: Method[Any, TaskT]
) -> tuple[Mapping[str, TaskT], Mapping[str, TaskT], str]:
    """The training tasks and the held-out ones by their names, and the split of these.

    Raises:
        ConfigError: there are none, or two have one name.
    """
    if options.prompt_data is None:
        split = options.eval_split
        train, evaluation = own_rows(method, "train"), own_rows(method, split, "--eval-split")
    else:
        split, file = options.eval_prompt_data
        train, evaluation = _read(options, options.prompt_data), _read(options, Path(file))
    return _by_id(method, train), _by_id(method, evaluation), split


def _read(options: TrainOptions, path: Path) -> Sequence[Row]:
    from turnwise.rows.reader import read_rows

    return list(
        read_rows(
            path,
            input_key=options.input_key,
            label_key=options.label_key,
            metadata_key=options.metadata_key,
        )
    )


def _by_id(method: Method[Any, TaskT], rows: Sequence[Row]) -> Mapping[str, TaskT]:
    tasks: dict[str, TaskT] = {}
    for row in rows:
        if row.id in tasks:
            raise ConfigError(f"{row.where or row.id}: two rows have the id {row.id!r}")
        tasks[row.id] = row_task(method, row)
    if not tasks:
        raise ConfigError("there is no row to train or evaluate on")
    return tasks


def _points(method: Method[Any, TaskT], rows: Sequence[Row]) -> Mapping[str, Mapping[str, TaskT]]:
    points: dict[str, list[Row]] = {}
    for row in rows:
        points.setdefault(str(row.metadata.get("part", "")), []).append(row)
    return {name: _by_id(method, mine) for name, mine in points.items()}


def _check_room(
    options: TrainOptions,
    method: Method[Any, TaskT],
    profile: tokendelta.Profile,
    tasks: Sequence[TaskT],
) -> None:
    """Raises ConfigError where the first prompt leaves no room for a turn."""
    prompt = method.prompt_tokens(tasks, profile)
    needed = prompt + options.rollout_max_response_len
    if prompt and needed > options.rollout_max_context_len:
        raise ConfigError(
            f"--rollout-max-context-len {options.rollout_max_context_len}: the longest first prompt"
            f" takes {prompt} tokens, one turn {options.rollout_max_response_len}; give at least"
            f" {needed}, and room for what follows"
        )

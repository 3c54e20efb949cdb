"""Data rows as tasks of τ²-bench, and its splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from taubench.source import SourceError
from taubench.tau2 import (
    TASK_SETS,
    Tau2Task,
    default_task_set,
    flags,
    load_tasks,
    splits,
    tool_schemas,
)
from turnwise.config import ConfigError
from turnwise.rows import Row

from apps.trainers.tau.options import TAU2, TAU2_ENVS

SOLO = "-solo"
REST = "rest"
"""The tasks of `full` that are not in `base`, where there are some: for training."""
HELD_OUT = "held-out"
"""Upstream's `test`, by the name that training evaluates on."""


@dataclass(frozen=True, slots=True)
class Job:
    """A task as it is played.

    Attributes:
        task: Of τ²-bench.
        solo: Whether the agent has the user's tools too, and a ticket in the user's place.
    """

    task: Tau2Task
    solo: bool = False


def place(env: str) -> tuple[str, bool]:
    """Domain, and whether it is played solo, of an `env`."""
    domain = env.removeprefix(TAU2)
    return domain.removesuffix(SOLO), domain.endswith(SOLO)


def task_set_of(env: str, given: str | None) -> str:
    """The version of the tasks of an `env`; `given` where it has that.

    Raises:
        ConfigError: it has not.
    """
    domain, _ = place(env)
    if given is None:
        return default_task_set(domain)
    if given not in TASK_SETS[domain]:
        known = ", ".join(TASK_SETS[domain])
        raise ConfigError(f"task-set {given}: the tasks of {env} are {known}")
    return given


def split_names(env: str) -> tuple[str, ...]:
    """The splits of an `env`, ours included."""
    names = tuple(_sizes(place(env)[0]))
    return (*names, REST) if {"full", "base"} <= set(names) else names


def tasks_of(env: str, split: str, task_set: str) -> tuple[Tau2Task, ...]:
    """The tasks of a split, in upstream's order.

    Raises:
        ConfigError: there is no such split, or the data is missing.
    """
    domain, _ = place(env)
    split = "test" if split == HELD_OUT else split
    if split not in split_names(env):
        raise ConfigError(f"split {split}: {env} has {', '.join(split_names(env))}")
    return _tasks(domain, split, task_set)


@cache
def _tasks(domain: str, split: str, task_set: str) -> tuple[Tau2Task, ...]:
    try:
        if split != REST:
            return load_tasks(domain, split, task_set)
        base = {task.id for task in load_tasks(domain, "base", task_set)}
        return tuple(task for task in load_tasks(domain, "full", task_set) if task.id not in base)
    except (SourceError, ValueError) as error:
        raise ConfigError(f"tasks of τ²-bench {domain} {split}: {error}") from error


@cache
def _sizes(domain: str) -> dict[str, int]:
    try:
        return dict(splits(domain))
    except SourceError as error:
        raise ConfigError(f"tasks of τ²-bench {domain}: {error}") from error


@cache
def tools_of(domain: str, task_set: str, solo: bool) -> tuple[Mapping[str, Any], ...]:
    """OpenAI function schemas of what the agent may call, made once. Read only."""
    return tuple(tool_schemas(domain, task_set, solo=solo))


def make_row(env: str, split: str, index: int, task: Tau2Task) -> Row:
    """The row of a task: its index in the split, since slime hands on a whole number."""
    metadata = {
        "env": env,
        "task_split": split,
        "task_set": task.task_set,
        "task_id": task.id,
        "content_hash": task.content_hash,
    }
    name = f"{env}/{task.task_set}/{task.id}".replace("#", "-")
    return Row(prompt=str(index), metadata=metadata, id=name)


def make_rows(env: str, split: str, task_set: str) -> Sequence[Row]:
    """The rows of a split. Raises ConfigError as `tasks_of`."""
    split = "test" if split == HELD_OUT else split
    tasks = tasks_of(env, split, task_set)
    return [make_row(env, split, index, task) for index, task in enumerate(tasks)]


def read_job(row: Row, env: str, split: str, task_set: str | None) -> Job:
    """The task of a row; what the row says of env, split and set goes before what is given.

    Raises:
        ConfigError: naming the row's place: there is no such task, or it is another one by now.
    """
    where = row.where or "--prompt-data"
    env = row.metadata.get("env", env)
    if env not in TAU2_ENVS:
        raise ConfigError(f"{where}: env: there is no {env!r:.60}; {', '.join(TAU2_ENVS)}")
    split = row.metadata.get("task_split", split)
    try:
        named = row.metadata.get("task_set") or task_set
        tasks = tasks_of(env, str(split), task_set_of(env, None if named is None else str(named)))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    text = str(row.prompt)
    index = int(text) if text.isdecimal() and len(text) < 10 else -1
    if not 0 <= index < len(tasks):
        raise ConfigError(
            f"{where}: {env} {split} has tasks 0 to {len(tasks) - 1}, found {text[:80]!r}; is"
            " --input-key index?"
        )
    task = tasks[index]
    if row.metadata.get("content_hash", task.content_hash) != task.content_hash:
        raise ConfigError(
            f"{where}: the task is not {task.key} as it is here; write the rows anew: tau:prepare"
        )
    return Job(task, place(env)[1])


def files_of(env: str, given: str | None) -> list[tuple[str, list[tuple[Row, bool]]]]:
    """What `prepare` writes: rows by split, each with whether the task's own solution passes.

    Raises:
        ConfigError: there is no such version, or the data is missing.
    """
    task_set, names = task_set_of(env, given), split_names(env)
    wanted = [name for name in ("train", "test", REST) if name in names] or list(names)
    return [
        (
            split,
            [
                (make_row(env, split, index, task), not flags(task).gold_fails)
                for index, task in enumerate(tasks_of(env, split, task_set))
            ],
        )
        for split in wanted
    ]

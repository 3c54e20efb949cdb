"""Flags of tasks whose score says less than it seems, and the do-nothing baseline.

The flags of all 685 tasks are shipped in `flags.json`, as positions per split; `compute_flags`
made them and a test computes them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import permutations
from typing import Any

from taubench.environment import Environment, GroundTruth, ground_truth
from taubench.source import SPLITS
from taubench.task import Action, Task, TaskFlags

READING_TOOLS = ("get_", "find_", "list_", "search_", "calculate", "think", "transfer_")
# Beyond this number of writes not every order is tried: ten of 685 tasks have more, 7 at most.
ALL_ORDERS_UP_TO = 4
SHORT_OUTPUT = 2


def is_write(action: Action) -> bool:
    """Whether the tool can change the database."""
    return not action.name.startswith(READING_TOOLS)


def _final_changes(task: Task, actions: Iterable[Action]) -> Mapping[tuple[str, str], str]:
    environment = Environment(task)
    for action in actions:
        environment.step(action)
    return environment.changes()


def _orders(writes: Sequence[Action]) -> Iterable[Sequence[Action]]:
    if len(writes) <= ALL_ORDERS_UP_TO:
        yield from permutations(writes)
        return
    yield writes[::-1]
    for index in range(1, len(writes)):
        yield [*writes[: index - 1], writes[index], writes[index - 1], *writes[index + 1 :]]


def _is_order_dependent(task: Task, truth: GroundTruth) -> bool:
    writes = [action for action in task.actions if is_write(action)]
    return any(_final_changes(task, order) != truth.changes for order in _orders(writes))


def compute_flags(task: Task) -> TaskFlags:
    """Computes the flags of a task by replaying its ground truth.

    A task is order dependent if its writing calls, made in another order, leave another database
    than in the annotated one. Tried are all orders of up to four writes; of more, the reverse
    order and every swap of two neighbours.
    """
    truth = ground_truth(task)
    return TaskFlags(
        gt_write_fails=any(
            is_write(action) and observation.startswith("Error")
            for action, observation in truth.observations
        ),
        order_dependent=_is_order_dependent(task, truth),
        noop_reward=Environment(task).score().reward,
        short_outputs=any(len(output) <= SHORT_OUTPUT for output in task.outputs),
    )


_NAMES = ("gt_write_fails", "order_dependent", "noop_reward", "short_outputs")


def flags_document(tasks: Mapping[str, Sequence[Task]]) -> dict[str, Any]:
    """The content of `flags.json` for tasks by split (`retail/train`)."""
    document: dict[str, Any] = {}
    for split, members in tasks.items():
        flags = [compute_flags(task) for task in members]
        document[split] = {
            name: [index for index, flag in enumerate(flags) if getattr(flag, name)]
            for name in _NAMES
        }
    return document


@cache
def shipped_flags(domain: str, split: str) -> tuple[TaskFlags, ...]:
    """Flags of every task of a split, in order, from `flags.json`."""
    text = resources.files("taubench").joinpath("flags.json").read_text("utf-8")
    listed = {name: frozenset(v) for name, v in json.loads(text)[f"{domain}/{split}"].items()}
    return tuple(
        TaskFlags(
            gt_write_fails=index in listed["gt_write_fails"],
            order_dependent=index in listed["order_dependent"],
            noop_reward=float(index in listed["noop_reward"]),
            short_outputs=index in listed["short_outputs"],
        )
        for index in range(SPLITS[domain][split])
    )


def training_tasks(
    tasks: Iterable[Task], *, include_gt_write_fails: bool = False
) -> tuple[Task, ...]:
    """The tasks to train on: without those whose ground truth contains a write that fails."""
    return tuple(task for task in tasks if include_gt_write_fails or not task.flags.gt_write_fails)


def noop_baseline(tasks: Sequence[Task]) -> float:
    """Mean reward of an agent that does nothing, to be printed beside every score.

    Raises:
        ValueError: no tasks.
    """
    if not tasks:
        raise ValueError("no tasks: a baseline needs at least one")
    return sum(task.flags.noop_reward for task in tasks) / len(tasks)

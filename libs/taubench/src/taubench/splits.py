"""The tasks of the main job, in three parts that share nothing.

The family: retail train tasks with one write, `cancel_pending_order` or
`return_delivered_order_items`, and no outputs: 168 of 500.

Two tasks belong together if they share an order, a user or the instruction; whole components
of this relation are dealt out, so no order and no user is in two parts. `tune` is for
choosing settings, `held_out` for what is reported, `train` for everything else.

The deal: components are shuffled, larger ones first, and each goes to the part that has least of
its kind (cancellation, or the number of items) for its share, so that the parts are equally hard.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from taubench.task import Task
from taubench.tasks import load_tasks

FAMILY = ("cancel_pending_order", "return_delivered_order_items")
SHARES = {"train": 96, "tune": 24, "held_out": 48}
SPLIT_SEED = 20260
_ORDER = re.compile(r"#W\d+")


@dataclass(frozen=True, slots=True)
class FamilySplits:
    """Disjoint parts of the task family, each in upstream's order."""

    train: tuple[Task, ...]
    tune: tuple[Task, ...]
    held_out: tuple[Task, ...]


def orders(task: Task) -> frozenset[str]:
    """Every order number in the task's instruction and annotated calls."""
    calls = " ".join(str(dict(action.kwargs)) for action in task.actions)
    return frozenset(_ORDER.findall(f"{task.instruction} {calls}"))


def family_tasks() -> tuple[Task, ...]:
    """The family in upstream's order. Raises SourceError if tau-trait is missing."""
    return tuple(
        task
        for task in load_tasks("retail", "train")
        if len(task.actions) == 1 and task.actions[0].name in FAMILY and not task.outputs
    )


def components(tasks: Sequence[Task]) -> list[tuple[Task, ...]]:
    """Tasks that share an order, a user or the instruction, directly or through others.

    In the order of their first tasks.
    """
    parent = list(range(len(tasks)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[tuple[str, str], int] = {}
    for index, task in enumerate(tasks):
        marks = [("user", task.user_id), ("instruction", task.instruction)]
        marks += [("order", order) for order in orders(task)]
        for mark in marks:
            parent[root(index)] = root(first.setdefault(mark, index))
    groups: dict[int, list[Task]] = {}
    for index, task in enumerate(tasks):
        groups.setdefault(root(index), []).append(task)
    return [tuple(group) for group in groups.values()]


@cache
def family_splits(seed: int = SPLIT_SEED) -> FamilySplits:
    """The parts for a seed; the same for the same seed on every machine.

    Raises SourceError if tau-trait is missing.
    """
    groups = components(family_tasks())
    random.Random(seed).shuffle(groups)
    groups.sort(key=len, reverse=True)
    parts: dict[str, list[Task]] = {name: [] for name in SHARES}
    for group in groups:
        name = max(SHARES, key=lambda part: _room(part, parts[part], group))
        parts[name].extend(group)
    return FamilySplits(**{name: _in_order(part) for name, part in parts.items()})


def _room(name: str, part: Sequence[Task], group: Sequence[Task]) -> float:
    """How far the part is below its share of tasks of the group's kind, as part of that share."""
    held = sum(_kind(task) == _kind(group[0]) for task in part)
    return 1 - held / SHARES[name]


def _kind(task: Task) -> int:
    """Items to return, at most 3; 0 for a cancellation. More items make a task harder."""
    return min(3, len(task.actions[0].kwargs.get("item_ids", ())))


def _in_order(tasks: Iterable[Task]) -> tuple[Task, ...]:
    return tuple(sorted(tasks, key=lambda task: task.index))

"""The tasks of an evaluation as they stand in its folder: `tasks.jsonl`, one row each.

With the trials beside them an evaluation can be graded again, and compared with another, without a
model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from turnwise.config import ConfigError
from turnwise.run.folder import write_whole
from turnwise.run.jsonl import dump, read_rows

TASKS = "tasks.jsonl"
ALL = "all"
"""Names all parts together, where there are several."""


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """One task.

    Attributes:
        id: Its name in this evaluation.
        part: What it is counted with, such as its data set, its domain or a length.
        key: By which it is found in another evaluation, whatever its name is there.
        question: As people are shown it, and as a grader is.
        label: What is right: any JSON value.
    """

    id: str
    part: str = ""
    key: str
    question: str = ""
    label: Any = None


def check_tasks(tasks: Sequence[TaskRow]) -> None:
    """
    Raises:
        ConfigError: two tasks have one name or are the same, or a part has the name of all.
    """
    known: dict[str, TaskRow] = {}
    names: set[str] = set()
    for task in tasks:
        if task.id in names:
            raise ConfigError(f"two rows have the id {task.id!r}")
        names.add(task.id)
        if (same := known.setdefault(task.key, task)) is not task:
            raise ConfigError(
                f"{task.id} is the question of {same.id} again, with the same answer; give every"
                " question once"
            )
    if ALL in {task.part for task in tasks}:
        raise ConfigError(f"{ALL!r} names all parts together; give that one another name")
    if not tasks:
        raise ConfigError("there is no row to evaluate on")


def write_tasks(folder: Path, tasks: Sequence[TaskRow]) -> None:
    """Writes tasks.jsonl whole or not at all."""
    write_whole(folder / TASKS, "".join(f"{dump(msgspec.to_builtins(t))}\n" for t in tasks))


def check_folder(folder: Path) -> None:
    """Raises ConfigError where a run's folder is not that of an evaluation."""
    if not (folder / TASKS).is_file():
        raise ConfigError(f"{folder}: not the folder of an evaluation: it has no {TASKS}")


def read_tasks(folder: Path) -> list[TaskRow]:
    """The tasks of an evaluation.

    Raises:
        ConfigError: the folder has none, or naming the line that is broken.
    """
    check_folder(folder)
    path, tasks = folder / TASKS, []
    for number, row in enumerate(read_rows(path), start=1):
        try:
            tasks.append(msgspec.convert(row, TaskRow))
        except msgspec.ValidationError as error:
            raise ConfigError(f"{path}:{number}: not a task: {error}") from None
    try:
        check_tasks(tasks)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return tasks


def parts(tasks: Sequence[TaskRow]) -> Mapping[str, list[str]]:
    """The names of each part's tasks, and of all where there are several parts."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        found.setdefault(task.part, []).append(task.id)
    return found if len(found) == 1 else {**found, ALL: [task.id for task in tasks]}

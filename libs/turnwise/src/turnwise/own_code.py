"""Calls of a method's code beside `run`: a bug in it becomes one error, with file and line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from turnwise.command import PreflightError, RunError
from turnwise.config import ConfigError
from turnwise.episode import BoundaryError
from turnwise.rows import Row

if TYPE_CHECKING:
    from turnwise.method import Method

TaskT = TypeVar("TaskT")


@contextmanager
def own_code(what: str, *passes: type[Exception]) -> Iterator[None]:
    """Calls code of a method.

    Args:
        what: What is called, for the error: `OrderDesk.task of train.jsonl:7`.
        passes: Further errors that the caller tells itself.

    Raises:
        ConfigError: the code raised what no method is meant to raise; names that with its place.
    """
    try:
        yield
    except (ConfigError, PreflightError, RunError, BoundaryError):
        raise
    except Exception as error:
        if isinstance(error, passes):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        # A SyntaxError says its own.
        place = "" if isinstance(error, SyntaxError) else f" ({frame.filename}:{frame.lineno})"
        raise ConfigError(f"{what} raised {type(error).__name__}: {error}{place}") from error


def new_method(cls: type[Method[Any, Any]], options: Any) -> Method[Any, Any]:
    """The class's object. Raises ConfigError where it can't be made."""
    with own_code(cls.__qualname__):
        return cls(options)


def row_task(method: Method[Any, TaskT], row: Row) -> TaskT:
    """`Method.task`. Raises ConfigError, which names the row where there is a bug in it."""
    with own_code(f"{type(method).__qualname__}.task of {row.where or f'row {row.id!r}'}"):
        return method.task(row)


def own_rows(method: Method[Any, Any], split: str, flag: str = "") -> Sequence[Row]:
    """`Method.rows`, for a split that `flag` names.

    Raises:
        ConfigError: there is no such split, which begins with the flag, or there is a bug in it.
    """
    try:
        with own_code(f"{type(method).__qualname__}.rows of {split!r}"):
            return list(method.rows(split))
    except ConfigError as error:
        if flag and split in str(error):
            raise ConfigError(f"{flag} {split}: {error}") from error
        raise

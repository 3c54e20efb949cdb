"""JSON lines that survive a crash: each row is one line, flushed; a torn last line is cut off."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError

Row = dict[str, Any]


def append_row(path: Path, row: Row) -> None:
    """Appends one row; NaN and infinity become null, since JSON has neither."""
    line = json.dumps(_finite(row), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")


def read_rows(path: Path) -> Iterator[Row]:
    """Rows in order; a last line without its end is the trace of a crash and is left out.

    Raises:
        ConfigError: naming file and line, if any other line is not a JSON object.
    """
    if not path.exists():
        return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: not valid JSON: {error}") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{path}:{number}: expected a JSON object, found {line[:40]!r}")
            yield row


def keep_rows(path: Path, wanted: Callable[[Row], bool]) -> int:
    """Rewrites the file with the wanted rows alone, in one step; returns how many went.

    A torn last line goes too.
    """
    if not path.exists():
        return 0
    partial = path.with_suffix(".partial")
    dropped = 0
    with partial.open("w", encoding="utf-8") as stream:
        for row in read_rows(path):
            if wanted(row):
                stream.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
            else:
                dropped += 1
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
    return dropped


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

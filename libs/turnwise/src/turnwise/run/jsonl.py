"""JSON lines that survive a crash: each row is one line; a torn last line is cut off.

A line counts once it ends with a newline, so what a crash leaves behind is at most one line without
one. Any other line that is not a JSON object means that somebody else wrote into the file, and is
an error that names it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from turnwise.config import ConfigError
from turnwise.run.disk import reading, writing

Row = dict[str, Any]
MAX_DEPTH = 100
"""Model-written arguments can nest at will; what lies deeper is left out of a row."""


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends one row, flushed to the system when this returns; see `append_rows`."""
    append_rows(path, [row])


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]], *, sync: bool = False) -> None:
    """Appends rows, flushed to the system when this returns.

    NaN and infinity become null, which JSON has instead. A torn last line is cut off before.
    Several processes may append to one file: each holds its lock meanwhile.

    Args:
        sync: Whether the rows shall be on the disk when this returns, so that they survive a loss
            of power.

    Raises:
        RunError: if they can't be written; the file then ends with the row before.
    """
    content = b"".join(dump(row).encode() + b"\n" for row in rows)
    if not content:
        return
    with writing(path):
        is_new = sync and not path.exists()
        with path.open("ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            start = stream.seek(0, os.SEEK_END) - torn_tail(path)
            stream.truncate(start)
            try:
                stream.write(content)
                stream.flush()
                if sync:
                    os.fsync(stream.fileno())
            except OSError:
                stream.truncate(start)
                raise
        if is_new:
            sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Puts the names of a folder's files on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_rows(path: Path) -> Iterator[Row]:
    """Rows in order; a torn last line and a missing file have none.

    Raises:
        ConfigError: naming file and line, if any other line is not a JSON object.
    """
    for number, line in enumerate(read_lines(path), start=1):
        yield parse_line(path, number, line)


def read_lines(path: Path) -> Iterator[bytes]:
    """Whole lines in order, unread."""
    if not path.exists():
        return
    with reading(path), path.open("rb") as stream:
        for line in stream:
            if line.endswith(b"\n"):
                yield line


def parse_line(path: Path, number: int, line: bytes) -> Row:
    """The row on line `number` of `path`. Raises ConfigError as `read_rows` does."""
    try:
        # Refuses what `dump` never writes: NaN, infinity, lone surrogates.
        row = msgspec.json.decode(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}:{number}: not valid JSON ({error}); mend or remove this line"
        ) from None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}:{number}: expected a JSON object, found {line[:40]!r}")
    return row


def torn_tail(path: Path) -> int:
    """Bytes behind the last newline: what a crash left of a line. 0 without a file."""
    if not path.exists():
        return 0
    with reading(path), path.open("rb") as stream:
        end = place = stream.seek(0, os.SEEK_END)
        while place > 0:
            start = max(0, place - 65536)
            stream.seek(start)
            at = stream.read(place - start).rfind(b"\n")
            if at >= 0:
                return end - (start + at + 1)
            place = start
        return end


def keep_until(path: Path, step: int, also: Callable[[Row], bool] = lambda row: True) -> int:
    """Rewrites the file with the rows up to `step` alone, at once; returns how many went.

    Of them those go for which `also` is false.

    Kept lines stay byte for byte; a torn last line goes and is not counted.

    Raises:
        ConfigError: naming a broken line or one without a step; the file is then as it was.
        RunError: if it can't be written; the file is then as it was.
    """
    if not path.exists():
        return 0
    partial = path.with_name(f".{path.name}.partial")
    dropped = 0
    try:
        with writing(path), partial.open("wb") as stream:
            for number, line in enumerate(read_lines(path), start=1):
                row = parse_line(path, number, line)
                found = row.get("step")
                if type(found) is not int:
                    raise ConfigError(f"{path}:{number}: step: expected a number, found {found!r}")
                if found <= step and also(row):
                    stream.write(line)
                else:
                    dropped += 1
            stream.flush()
            os.fsync(stream.fileno())
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return dropped


def dump(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON of any text that a model may write: see `plain`."""
    separators = (",", ":") if indent is None else None
    return json.dumps(
        plain(value), ensure_ascii=False, separators=separators, allow_nan=False, indent=indent
    )


def plain(value: Any, depth: int = MAX_DEPTH) -> Any:
    """`value` as what JSON has.

    NumPy numbers and arrays become Python's, NaN and infinity None, lone surrogates `\\ufffd`,
    anything unknown its `str`, and what is nested deeper than `depth` the text `(nested too deep)`.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), depth)
    if not isinstance(value, Mapping | list | tuple):
        return plain(str(value))
    if depth == 0:
        return "(nested too deep)"
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item, depth - 1) for key, item in value.items()}
    return [plain(item, depth - 1) for item in value]

"""Data files as records: JSON lines, parquet, or text with tabs, whole or a slice.

    for record in records("train.jsonl@[100:200]"):
        record.where, record.fields

`path@[start:end]` is slime's slice of the rows, with Python's meaning of both numbers; what lies
outside of it is not read as JSON. A byte order mark is left out. A `.tsv` file names its columns in
its first line and quotes as spreadsheets do; its values are texts.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError

_SLICE = re.compile(r"(?P<path>.*)@\[(?P<start>-?\d*):(?P<end>-?\d*)\]", re.DOTALL)
_BATCH_ROWS = 4096
_OTHER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_REWRITE = 'python -c "import pandas; pandas.{reader}({path!r}).to_json({new!r}, {how})"'
_READERS = {
    ".csv": "read_csv",
    ".json": "read_json",
    ".feather": "read_feather",
    ".xlsx": "read_excel",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a file, by column.

    Attributes:
        where: `train.jsonl:7` (the line) or `train.parquet, row 7`, both from 1.
        number: That line or row.
        fields: As the file has them.
    """

    where: str
    number: int
    fields: Mapping[str, Any]


def split_slice(path: str | Path) -> tuple[Path, slice]:
    """The file and its slice of rows: all of them where none is written."""
    found = _SLICE.fullmatch(str(path))
    if found is None:
        return Path(path), slice(None)
    start, end = (int(found[name]) if found[name] else None for name in ("start", "end"))
    return Path(found["path"]), slice(start, end)


def records(path: str | Path) -> Iterator[Record]:
    """The rows of a `.jsonl`, `.parquet` or `.tsv` file, in order.

    Args:
        path: The file, or `FILE@[start:end]`.

    Raises:
        ConfigError: naming the file and line or row, what was found and what to do: it is missing,
            of another kind, broken, or holds no row.
    """
    file, part = split_slice(path)
    suffix = file.suffix.lower()
    _check_file(file, suffix)
    read = {".parquet": _parquet, ".tsv": _tsv}.get(suffix, _jsonl)
    found = read(file, part)
    empty = True
    for record in found:
        empty = False
        yield record
    if empty:
        among = f" among rows {part.start or 0} to {part.stop}" if part != slice(None) else ""
        raise ConfigError(f"{path}: holds no row{among}; give a file with one JSON object a line")


def _check_file(file: Path, suffix: str) -> None:
    try:
        exists, is_folder = file.exists(), file.is_dir()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(file)!r}: {error}") from None
    if is_folder:
        raise ConfigError(f"{file}: is a folder; give one .jsonl or .parquet file")
    if not exists:
        raise ConfigError(f"{file}: No such file; give a .jsonl or .parquet file")
    if suffix in (".jsonl", ".parquet", ".tsv"):
        return
    new = str(file.with_suffix(".jsonl"))
    how = "orient='records', lines=True"
    convert = f"gunzip {file}" if suffix == ".gz" else "convert it to JSON lines"
    if suffix in _READERS:
        convert += ": " + _REWRITE.format(reader=_READERS[suffix], path=str(file), new=new, how=how)
    raise ConfigError(
        f"{file}: must end in .jsonl (one JSON object a line) or .parquet, found"
        f" {suffix or 'no ending'!r}; {convert}"
    )


def _taken(lines: Iterator[tuple[int, Any]], part: slice) -> Iterator[tuple[int, Any]]:
    """`lines[part]`; the whole is kept only as far as numbers counted from the end need it."""
    start, stop = part.start or 0, part.stop
    if start < 0 and stop is None:
        return iter(deque(lines, maxlen=-start))
    if start < 0 or (stop is not None and stop < 0):
        return iter(list(lines)[part])
    return islice(lines, start, stop)


def _jsonl(file: Path, part: slice) -> Iterator[Record]:
    for number, line in _taken(_lines(file), part):
        where = f"{file}:{number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{where}: not UTF-8 at byte {error.start} of the line; convert the file:"
                f" iconv -t UTF-8 {file}"
            ) from None
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{where}: not valid JSON ({error}); a row is one JSON object on one line"
            ) from None
        if not isinstance(fields, dict):
            raise ConfigError(
                f'{where}: expected a JSON object such as {{"prompt": ..., "label": ...}},'
                f" found {text.strip()[:40]!r}"
            )
        yield Record(where, number, fields)


def _tsv(file: Path, part: slice) -> Iterator[Record]:
    # A field is as long as its article; the module's own bound is 128 KiB.
    csv.field_size_limit(2**31 - 1)
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, delimiter="\t", strict=True)
            head = next(rows, [])
            if twice := next((name for name in head if head.count(name) > 1), None):
                raise ConfigError(f"{file}:1: names the column {twice!r:.60} twice; rename one")
            numbered = ((rows.line_num, row) for row in rows if row)
            for number, row in _taken(numbered, part):
                where = f"{file}:{number}"
                if len(row) != len(head):
                    raise ConfigError(
                        f"{where}: has {len(row)} columns, the first line names {len(head)}"
                    )
                yield Record(where, number, dict(zip(head, row, strict=True)))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 ({error.reason}); convert it with iconv") from None
    except csv.Error as error:
        raise ConfigError(f"{file}:{rows.line_num}: no text with tabs ({error})") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from None


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, by their number."""
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if number == 1:
                    if line.startswith(_OTHER_MARKS):
                        raise ConfigError(
                            f"{file}:1: is UTF-16; convert the file:"
                            f" iconv -f UTF-16 -t UTF-8 {file}"
                        )
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from None


def _parquet(file: Path, part: slice) -> Iterator[Record]:
    # Slow to import, and needed for this format alone.
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            f"{file}: a parquet file needs the package pyarrow ({error}); install it, or write the"
            " rows as .jsonl"
        ) from None

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            start, stop, _ = part.indices(opened.metadata.num_rows)
            for batch in opened.iter_batches(batch_size=_BATCH_ROWS):
                first = number
                number += batch.num_rows
                wanted = range(max(start, first), min(stop, number))
                if wanted:
                    rows = batch.slice(wanted.start - first, len(wanted)).to_pylist()
                    for at, fields in zip(wanted, rows, strict=True):
                        yield Record(f"{file}, row {at + 1}", at + 1, fields)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"{file}: no readable parquet after row {number} ({said[0]}); write it again"
        ) from None

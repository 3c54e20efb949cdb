"""Data sets as they are published, read row by row into questions with answers.

| found in a row                          | question      | answer                    |
| --------------------------------------- | ------------- | ------------------------- |
| DAPO-Math-17K, parquet                  | prompt (chat) | reward_model.ground_truth |
| slime's JSONL of DAPO-Math-17K and AIME | prompt (chat) | label                     |
| AIME, parquet or JSONL                  | problem       | answer                    |
| others                                  | question      | answer                    |

Keys are read in any case. Of a chat the last user message is the question. The frame that
DAPO-Math-17K puts around each question asks for a last line `Answer: ...`; it is taken off, because
the method has its own form of answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError

QUESTION_KEYS = ("prompt", "problem", "question")
ANSWER_KEYS = ("label", "answer", "reward_model")
_KEPT = ("id", "data_source", "ability", "url", "year", "index")
_BATCH_ROWS = 4_096
_FRAME_HEAD = re.compile(r"\ASolve the following math problem step by step\.[^\n]*\n\n")
_FRAME_TAIL = re.compile(r"\n\nRemember to put your answer on its own line[^\n]*\Z")


@dataclass(frozen=True, slots=True)
class Row:
    """A question as published.

    Attributes:
        where: `file: line 3` or `file: row 3`, counted from 1.
        text: The question without a frame.
        label: The answer.
        metadata: What else the row says about it, JSON-able.
    """

    where: str
    text: str
    label: str
    metadata: Mapping[str, Any]


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a `.jsonl` or `.parquet` file.

    Raises:
        ConfigError: naming the file and line or row, what was found and what is expected.
    """
    for where, record in records(path):
        yield _row(where, record)


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """What stands in each row, after where that is; raises as `read_rows`."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        yield from _jsonl(path)
    elif suffix == ".parquet":
        yield from _parquet(path)
    else:
        raise ConfigError(f"{path}: must end in .jsonl or .parquet, found {path.suffix!r}")


def _jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            where = f"{path}: line {number}"
            try:
                yield where, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{where}: no JSON: {error}") from None


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    # Slow to import, and needed for this format alone.
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            wanted = {*QUESTION_KEYS, *ANSWER_KEYS, *_KEPT, "extra_info"}
            names = [name for name in file.schema_arrow.names if name.lower() in wanted]
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=names):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", record
    except (pyarrow.ArrowException, OSError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"{path}: after row {number}: no readable parquet: {said[0]}") from None


def _row(where: str, record: Any) -> Row:
    if not isinstance(record, Mapping):
        raise ConfigError(f"{where}: must be an object, found {type(record).__name__}")
    fields = {str(key).lower(): value for key, value in record.items()}
    text = _question(where, _first(where, fields, QUESTION_KEYS))
    label = _label(where, _first(where, fields, ANSWER_KEYS))
    kept = {key: fields[key] for key in _KEPT if isinstance(fields.get(key), str | int)}
    extra = fields.get("extra_info")
    if isinstance(extra, Mapping) and isinstance(extra.get("index"), str | int):
        kept["index"] = extra["index"]
    return Row(where, text, label, kept)


def _first(where: str, fields: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    for key in keys:
        if fields.get(key) is not None:
            return fields[key]
    there = ", ".join(sorted(fields)) or "nothing"
    raise ConfigError(f"{where}: needs one of {', '.join(keys)}, has {there}")


def _question(where: str, value: Any) -> str:
    if isinstance(value, list):
        said = [one.get("content") for one in value if _is_user(one)]
        if not said:
            raise ConfigError(f"{where}: the prompt has no message of a user")
        value = said[-1]
    if not isinstance(value, str):
        raise ConfigError(f"{where}: the question must be text, found {type(value).__name__}")
    text = _FRAME_TAIL.sub("", _FRAME_HEAD.sub("", value.strip())).strip()
    if not text:
        raise ConfigError(f"{where}: the question is empty")
    return text


def _is_user(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "user"


def _label(where: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("ground_truth")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        found = "none" if value is None else type(value).__name__
        raise ConfigError(f"{where}: the answer must be text or a number, found {found}")
    label = str(value).strip()
    if not label:
        raise ConfigError(f"{where}: the answer is empty")
    return label

"""Data sets as they are published, read row by row into questions with answers.

| found in a row                          | question      | answer                    |
| --------------------------------------- | ------------- | ------------------------- |
| DAPO-Math-17K, parquet                  | prompt (chat) | reward_model.ground_truth |
| slime's JSONL of DAPO-Math-17K and AIME | prompt (chat) | label                     |
| AIME, parquet or JSONL                  | problem       | answer                    |
| others                                  | question      | answer                    |

Keys are read in any case. Of a chat, or a chat written as a JSON string, the last user message is
the question. The frame that DAPO-Math-17K puts around each question asks for a last line
`Answer: ...`; it is taken off, because the method has its own form of answer. Of a worked solution
the answer is taken (`turnwise.answers.labels`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.answers.frames import without_frame
from turnwise.answers.labels import read_answer
from turnwise.config import ConfigError
from turnwise.rows.checks import check_prompt
from turnwise.rows.files import Record, records

QUESTION_KEYS = ("prompt", "problem", "question")
ANSWER_KEYS = ("label", "answer", "reward_model")
_KEPT = ("id", "data_source", "ability", "url", "year", "index")


@dataclass(frozen=True, slots=True)
class Row:
    """A question as published.

    Attributes:
        where: `file:3` (a line) or `file, row 3`, counted from 1.
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
    for record in records(path):
        yield _row(record)


def _row(record: Record) -> Row:
    where = record.where
    fields = {str(key).lower(): value for key, value in record.fields.items()}
    question_key, question = _first(where, fields, QUESTION_KEYS)
    answer_key, answer = _first(where, fields, ANSWER_KEYS)
    label = read_answer(answer, where, answer_key)
    kept = {key: fields[key] for key in _KEPT if isinstance(fields.get(key), str | int)}
    extra = fields.get("extra_info")
    if isinstance(extra, Mapping) and isinstance(extra.get("index"), str | int):
        kept["index"] = extra["index"]
    return Row(where, _question(where, question_key, question), label, kept)


def _first(where: str, fields: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, Any]:
    for key in keys:
        if fields.get(key) is not None:
            return key, fields[key]
    there = ", ".join(sorted(fields)) or "nothing"
    raise ConfigError(
        f"{where}: needs one of {', '.join(keys)}, has {there}; rename the column in the file"
    )


def _question(where: str, key: str, value: Any) -> str:
    prompt = check_prompt(_parsed(value), where, key)
    if not isinstance(prompt, str):
        said = [one["content"] for one in prompt if one["role"] == "user"]
        if not said:
            raise ConfigError(f"{where}: {key}: has no message of a user")
        prompt = said[-1]
    if not isinstance(prompt, str):
        raise ConfigError(
            f"{where}: {key}: the question must be text, found {type(prompt).__name__}"
        )
    text = without_frame(prompt)
    if not text:
        raise ConfigError(f"{where}: {key}: the question is empty")
    return text


def _parsed(value: Any) -> Any:
    """A chat that was written as a JSON string as the list that it is."""
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value

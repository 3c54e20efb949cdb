"""Reads the rows of a data file, the same for every backend and evaluator.

    rows = read_rows("train.jsonl", input_key="prompt", label_key="label")

The keys mean what slime's options of the same names mean: `--input-key` (a text or OpenAI-style
messages), `--label-key` (any JSON value; no label where not given), `--metadata-key` (an object
that may be missing) and `--tool-key` (a list, or its JSON text: the metadata's `tools`).
slime hands a method the prompt that its own template rendered where `--apply-chat-template` is set;
here it is as the row has it.

Where slime skips or passes on what nobody can solve, this refuses the file:

| in a row                                       | why                                             |
|------------------------------------------------|-------------------------------------------------|
| no such key, an empty prompt                   | nothing is asked                                |
| a chat as a JSON string                        | the model would be shown the JSON               |
| a message without role or content              | no template renders it                          |
| `"$\\frac12$"`: a form feed and `rac`          | a backslash was lost in writing the JSON        |
| a lone surrogate                               | half of a character; no tokenizer encodes it    |
| a label of NaN, Infinity or 1e400              | nothing equals it                               |
| metadata that is no object                     | methods look keys up in it                      |

Whether a label can be graded is the method's to say: `turnwise.answers.labels` for answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError
from turnwise.rows import Row
from turnwise.rows.checks import (
    check_characters,
    check_label,
    check_leaf,
    check_prompt,
    leaves,
    shown,
)
from turnwise.rows.files import Record, records, split_slice

_USUAL = {
    "--input-key": ("prompt", "problem", "question", "input", "messages", "instruction", "query"),
    "--label-key": ("label", "answer", "reward_model", "ground_truth", "target", "solution"),
}


def read_rows(
    path: str | Path,
    *,
    input_key: str = "input",
    label_key: str | None = None,
    metadata_key: str = "metadata",
    tool_key: str | None = "tools",
) -> Iterator[Row]:
    """The rows of a file, in order; each is checked as it is reached.

    Args:
        path: A `.jsonl` or `.parquet` file, or `FILE@[start:end]`.
        input_key, label_key, metadata_key, tool_key: Names of columns, as slime's options have
            them.

    Raises:
        ConfigError: naming file, line and field, what was found and what to do.
    """
    name = split_slice(path)[0].stem
    for record in records(path):
        metadata = _metadata(record, metadata_key)
        if tool_key is not None and record.fields.get(tool_key) is not None:
            metadata = {**metadata, "tools": _tools(record, tool_key)}
        identity = metadata.get("id")
        named = isinstance(identity, str | int) and not isinstance(identity, bool)
        yield Row(
            prompt=check_prompt(_value(record, input_key, "--input-key"), record.where, input_key),
            label=None if label_key is None else _label(record, label_key),
            metadata=metadata,
            id=f"{identity}" if named else f"{name}-{record.number}",
            where=record.where,
        )


def _metadata(record: Record, key: str) -> Mapping[str, Any]:
    value = record.fields.get(key)
    if value is None:
        return {}
    where = record.where
    if not isinstance(value, Mapping):
        remedy = "write the object itself" if isinstance(value, str) else "write an object"
        raise ConfigError(
            f"{where}: {key}: expected an object, found {shown(value)}; {remedy}, or"
            " --metadata-key names another column"
        )
    for field, found in leaves(value, key):
        check_leaf(found, where, field)
        if isinstance(found, str):
            check_characters(found, where, field)
    return value


def _tools(record: Record, key: str) -> Any:
    value = record.fields[key]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{record.where}: {key}: not valid JSON ({error}); --tool-key names another column"
            ) from None
    if not isinstance(value, list):
        raise ConfigError(
            f"{record.where}: {key}: expected a list of tools, found {shown(value)}; --tool-key"
            " names another column"
        )
    return value


def _label(record: Record, key: str) -> Any:
    value = _value(record, key, "--label-key")
    check_label(value, record.where, key)
    return value


def _value(record: Record, key: str, option: str) -> Any:
    if key in record.fields:
        return record.fields[key]
    names = (key if key.isprintable() else ascii(key) for key in map(str, record.fields))
    there = ", ".join(sorted(names)) or "no key"
    usual = next((name for name in _USUAL[option] if name in record.fields), None)
    hint = f": {option} {usual}" if usual else ""
    raise ConfigError(
        f"{record.where}: no {key!r}; found {there}. {option} names another column{hint}"
    )

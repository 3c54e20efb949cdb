"""A data row, the same on every backend. Files of them are read by `turnwise.rows.reader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data file, or of a method's own tasks.

    Attributes:
        prompt: What stands under `--input-key`: text, or OpenAI-style messages.
        label: What stands under `--label-key`: any JSON value.
        metadata: What stands under `--metadata-key`. Read only.
        id: Names the task in reports and comparisons; unique among the rows of a run.
        where: For errors: `train.jsonl:7`, or `train.parquet, row 7`.
    """

    prompt: str | Sequence[Mapping[str, Any]]
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    where: str = ""

"""Rows that travel through a log, where the run folder is not on the machine that makes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turnwise.run.jsonl import Row, dump

MARK = "turnwise-row "


def relay_line(row: Mapping[str, Any]) -> str:
    """A row as a line of a log."""
    return MARK + dump(row)


def relayed_row(line: str) -> Row | None:
    """The row that a line of a log carries, whatever stands before it; None for any other line."""
    _, mark, text = line.partition(MARK)
    if not mark:
        return None
    try:
        row, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None

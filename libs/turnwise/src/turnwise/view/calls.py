"""The calls of an episode's turns as they were read when it was played, with errors where they are.

`turnwise.conversation.history.reading` writes them into the transcript; `toolparse` gave the spans.
"""

from __future__ import annotations

from typing import Any

import msgspec

from turnwise.run.traces import Trace

MAX_CALL = 4000
"""Characters shown of one call, behind its fault where it has one."""
MAX_CALLS = 64
"""Calls shown of one turn."""


class _Error(msgspec.Struct, frozen=True):
    kind: str
    message: str
    span: tuple[int, int] | None = None
    offset: int | None = None


class _Attempt(msgspec.Struct, frozen=True):
    name: str | None = None
    span: tuple[int, int] | None = None
    error: _Error | None = None


class _Turn(msgspec.Struct, frozen=True):
    read: list[_Attempt]
    turn: int
    text: str = ""


def calls_of(trace: Trace) -> dict[int, list[dict[str, Any]]]:
    """By turn what looks like a call: its text, where the fault stands in it, and what is wrong."""
    found = {}
    for message in trace.transcript:
        if "read" not in message:
            continue
        try:
            turn = msgspec.convert(message, _Turn)
        except msgspec.ValidationError:
            # A message of an endpoint may have a key of this name.
            continue
        found[turn.turn] = [_shown(one, turn.text) for one in turn.read[:MAX_CALLS]]
    return found


def _shown(attempt: _Attempt, text: str) -> dict[str, Any]:
    start, stop = attempt.span or (0, 0)
    error = attempt.error
    at = fault = -1
    if error is not None and error.offset is not None:
        at = error.offset
        place = len(text.encode("utf-8", "replace")[:at].decode("utf-8", "ignore"))
        fault = place if start <= place < min(stop, len(text)) else -1
    end = min(stop, max(start, fault) + MAX_CALL)
    parts = (
        [text[start:end]] if fault < 0 else [text[start:fault], text[fault], text[fault + 1 : end]]
    )
    where = f" at byte {at}" if at >= 0 else ""
    return {
        "name": attempt.name or "no name",
        "where": f"characters {start} to {stop}" if attempt.span else "",
        "parts": parts,
        "left_out": stop - end,
        "said": "" if error is None else f"{error.kind}{where}: {error.message}",
    }

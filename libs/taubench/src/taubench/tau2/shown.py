"""A conversation as those who read it afterwards are shown it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taubench.tau2.messages import Message

_SPEAKERS = {"assistant": "agent", "user": "customer"}


def for_judge(history: Sequence[Message]) -> list[dict[str, Any]]:
    """Who said, called or got what, in order, JSON-able: for `turnwise.judge.AssertionJudge`."""
    shown: list[dict[str, Any]] = []
    for message in history:
        if message.role == "tool":
            shown.append({f"result for {_SPEAKERS[message.side]}": message.content or ""})
            continue
        speaker = _SPEAKERS[message.role]
        if message.has_text:
            shown.append({speaker: message.content})
        shown += [
            {f"{speaker} calls": call.name, "arguments": dict(call.arguments)}
            for call in message.calls
        ]
    return shown

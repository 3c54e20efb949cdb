"""Ids of calls: what a client was sent, and what the model wrote in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokendelta.rendering import Message


def ids_by_sent(told: Message, own: Message) -> dict[str, str]:
    """The model's ids of calls by those that were sent for them, call by call."""
    pairs = zip(told.get("tool_calls") or (), own.get("tool_calls") or (), strict=False)
    ids = ((sent.get("id"), written.get("id")) for sent, written in pairs)
    return {str(sent): str(written) for sent, written in ids if sent and written}


def with_own_ids(message: dict[str, Any], own: Mapping[str, str]) -> dict[str, Any]:
    """A message with the model's ids in place of those that were sent."""
    answered = str(message.get("tool_call_id"))
    if answered in own:
        message = {**message, "tool_call_id": own[answered]}
    if isinstance(message.get("tool_calls"), list):
        calls = [
            {**call, "id": own[str(call["id"])]}
            if isinstance(call, Mapping) and str(call.get("id")) in own
            else call
            for call in message["tool_calls"]
        ]
        message = {**message, "tool_calls": calls}
    return message

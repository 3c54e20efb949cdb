"""Parsed text in the shapes that other libraries take."""

from __future__ import annotations

from typing import Any

from toolparse.result.model import Parsed

RESPOND = "respond"


def to_openai_message(parsed: Parsed, *, id_prefix: str = "call_") -> dict[str, Any]:
    """An assistant message of the chat API.

    The native id of a call is kept where the model wrote one; else ids count from 0 with
    `id_prefix`. `content` is None where there is no text beside the calls.
    """
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content or None}
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    if parsed.calls:
        message["tool_calls"] = [
            {
                "id": call.id or f"{id_prefix}{position}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_json},
            }
            for position, call in enumerate(parsed.calls)
        ]
    elif message["content"] is None:
        message["content"] = ""
    return message


def to_tau_action(parsed: Parsed) -> dict[str, Any]:
    """The tau-bench action, as keywords of its `Action`: {"name", "kwargs"}.

    The first call is the action, as tau-bench and slime's example have it; a text without
    an executable call answers the user with its content.
    """
    for call in parsed.calls:
        return {"name": call.name, "kwargs": call.arguments}
    return {"name": RESPOND, "kwargs": {"content": parsed.content}}

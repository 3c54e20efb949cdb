"""A history of a model behind an OpenAI-compatible endpoint: it speaks messages, not tokens.

It calls tools natively. Every call gets an answer under its id, as endpoints demand: one that was
not carried out is told so. What an endpoint may refuse to read again is repaired in the request
alone: arguments that are no JSON object are sent as `{}`, a missing id as `call_TURN_PLACE`. Blank
arguments are none, as endpoints write a call of a tool that takes none. What came with words and
calls and is wanted back, such as thoughts, goes back as it came.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.conversation.history import (
    Asked,
    CallError,
    Message,
    Overflow,
    Sampled,
    ToolCall,
    Turn,
    assistant_message,
    for_template,
)
from turnwise.episode import Boundary, Limit, crossing
from turnwise.models.answer import ChatReply
from turnwise.models.answer import ToolCall as WireCall
from turnwise.models.client import ConversationTooLong
from turnwise.policy import EndpointPolicy

NOT_MADE = "Error: this call was not carried out"
HANDED_ON = "Said to the user."
_SEED_BITS = 0x7FFFFFFF
"""Servers keep seeds as signed 32-bit integers."""


class EndpointHistory:
    """The messages as the endpoint gets them."""

    def __init__(self, policy: EndpointPolicy, *, tools: Sequence[Mapping[str, Any]]) -> None:
        self._policy, self._tools = policy, list(tools)
        self._wire: list[dict[str, Any]] = []
        self._unanswered: list[str] = []

    def extend(self, messages: Sequence[Message]) -> Overflow | None:
        """See `History`."""
        plain = for_template(messages)
        said: list[dict[str, Any]] = []
        for place, call_id in enumerate(self._unanswered):
            answer = plain[place] if place < len(plain) else None
            content = NOT_MADE if answer is None else answer["content"]
            if answer is not None and answer["role"] == "user":
                content = HANDED_ON
                said.append(answer)
            self._wire.append({"role": "tool", "tool_call_id": call_id, "content": content})
        self._wire += said + plain[len(self._unanswered) :]
        self._unanswered = []
        return None

    def sync(self, messages: Sequence[Message]) -> Overflow | None:
        """See `History`."""
        self._wire = for_template(messages)
        self._unanswered = []
        return None

    async def sample(self, asked: Asked) -> Sampled | Overflow:
        """See `History`."""
        extra: dict[str, Any] = {"seed": asked.seed & _SEED_BITS}
        if self._policy.top_p < 1:
            extra["top_p"] = self._policy.top_p
        if asked.max_new_tokens is not None:
            own = self._policy.client.config.max_tokens or asked.max_new_tokens
            extra["max_tokens"] = min(asked.max_new_tokens, own)
        try:
            async with crossing(Boundary.ENGINE, deadline_s=asked.deadline_s):
                # Empty words are the policy's own; asking again would draw a second sample.
                reply = await self._policy.client.complete(
                    self._wire, tools=self._tools, as_said=True, extra=extra
                )
        except ConversationTooLong:
            return Overflow(0, 0)
        turn = _turn(reply, asked.number)
        self._remember(reply, asked.number)
        return Sampled(turn=turn, message=assistant_message(turn))

    def _remember(self, reply: ChatReply, number: int) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, **reply.reasoning}
        if reply.tool_calls:
            self._unanswered = [
                call.id or f"call_{number}_{place}" for place, call in enumerate(reply.tool_calls)
            ]
            message["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {
                        "name": call.name or "unnamed",
                        "arguments": call.arguments if _object(call) else "{}",
                    },
                    **call.more,
                }
                for call_id, call in zip(self._unanswered, reply.tool_calls, strict=True)
            ]
        self._wire.append(message)


def _turn(reply: ChatReply, number: int) -> Turn:
    errors = [
        CallError("bad_arguments", f"the arguments of {call.name or 'a call'} are no JSON object")
        for call in reply.tool_calls
        if _object(call) is None
    ]
    cut = reply.finish == "length"
    return Turn(
        number=number,
        text=reply.text,
        content=reply.text,
        calls=tuple(ToolCall(call.name, _arguments(call)) for call in reply.tool_calls),
        errors=tuple(errors),
        finish="length" if cut else "stop",
        limit=Limit.TOKENS if cut else None,
        prompt_tokens=reply.read_tokens,
        tokens=reply.written_tokens,
    )


def _arguments(call: WireCall) -> Mapping[str, Any] | str:
    found = _object(call)
    return call.arguments if found is None else found


def _object(call: WireCall) -> dict[str, Any] | None:
    if not call.arguments.strip():
        return {}
    try:
        found = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None

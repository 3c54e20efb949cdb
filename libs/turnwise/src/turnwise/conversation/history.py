"""What a `Conversation` keeps of one history, whoever speaks: a policy's tokens or an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import toolparse
from numpy.typing import NDArray

from turnwise.engine import Finish
from turnwise.episode import Ending, Limit
from turnwise.rounds import in_thread

Message = Mapping[str, Any]

LONG_CHARACTERS = 100_000
"""Of messages that enter a prompt together: beyond it they are encoded in a thread."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """The next prompt leaves no room for a token.

    Attributes:
        needed: Tokens that would have to fit; 0 where an endpoint does not say.
        limit: The context, in tokens; 0 where an endpoint does not say.
    """

    needed: int
    limit: int

    @property
    def ending(self) -> Ending:
        """The policy had the context, and the turns to use it up."""
        return Ending.stopped(Limit.CONTEXT)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the policy wrote.

    Attributes:
        name: As written; there may be no such tool.
        arguments: The JSON object, or the text that is none.
    """

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class CallError:
    """Why something that looks like a call is none: kind and sentence, as of `toolparse`."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One sampled turn.

    Attributes:
        number: From 0, over all of a conversation.
        text: All that was sampled, without the stop token.
        content: The words outside of tool calls and reasoning; `text` where nothing is parsed.
        reasoning: What stood in the format's reasoning tags; None where there was none.
        calls: Calls in order, also of tools that do not exist.
        errors: What is broken about the others.
        parsed: As `toolparse` gives it, with every span; None where nothing is parsed.
        finish: The engine's reason to end the turn.
        limit: Where `finish` is `length`: TOKENS for the turn's own, CONTEXT for the history's.
        prompt_tokens, tokens: Sizes of the prompt and of what was sampled.
        ids: int32[tokens], what was sampled, stop token included; None where an endpoint spoke.
    """

    number: int
    text: str
    content: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[CallError, ...] = ()
    parsed: toolparse.Parsed | None = None
    finish: Finish
    limit: Limit | None = None
    prompt_tokens: int
    tokens: int
    ids: NDArray[np.int32] | None = field(default=None, compare=False, repr=False)

    @property
    def ending(self) -> Ending | None:
        """How the episode ends with a turn that is not whole; None for a whole one."""
        if self.finish == "abort":
            return Ending.cancelled()
        return Ending.stopped(self.limit) if self.limit is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How to sample a turn.

    Attributes:
        number: Of the turn.
        seed: In [0, 2^63).
        session_id: Of the engine.
        deadline_s: Seconds, repeats of a request included.
        max_new_tokens: Of this turn, where the policy's own limit is not less; None for that one.
    """

    number: int
    seed: int
    session_id: str
    deadline_s: float
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A turn with what a conversation counts and writes down about it."""

    turn: Turn
    message: Mapping[str, Any]
    cached_tokens: int = 0
    weight_version: int | None = None


class History(Protocol):
    """One history of messages and turns."""

    def extend(self, messages: Sequence[Message]) -> Overflow | None:
        """Adds messages and makes the next prompt; with Overflow nothing is added.

        Raises:
            Exception: the messages can't stand there.
        """
        ...

    def sync(self, messages: Sequence[Message]) -> Overflow | None:
        """Takes the whole history as a client sends it; see `tokendelta.Session.sync`."""
        ...

    async def sample(self, asked: Asked) -> Sampled | Overflow:
        """Samples the turn after the prompt.

        Raises:
            BoundaryError: the engine failed or missed its deadline.
        """
        ...


def assistant_message(turn: Turn) -> dict[str, Any]:
    """The turn as an OpenAI-style message; a turn that was cut is its text."""
    if turn.finish != "stop":
        return {"role": "assistant", "content": turn.text}
    message: dict[str, Any] = {"role": "assistant", "content": turn.content}
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
    return message


def are_long(messages: Sequence[Message]) -> bool:
    """Whether these messages are to be encoded in a thread."""
    return sum(len(str(one.get("content") or "")) for one in messages) >= LONG_CHARACTERS


async def encoded(
    add: Callable[[Sequence[Message]], Overflow | None], messages: Sequence[Message]
) -> Overflow | None:
    """What `add` says of the messages. Long ones are encoded in a thread: a megabyte takes a
    second, in which nothing else of the loop would go on."""
    if not are_long(messages):
        return add(messages)
    return await in_thread(partial(add, messages))


def reading(turn: Turn) -> dict[str, Any]:
    """What the trace holds of how a turn was read: nothing where it writes no call.

    `read` lists every attempt at a call with the `name` and its `span` in characters of `text`; one
    that is broken has an `error` with `kind`, `message`, `span`, and `offset` in bytes of `text` as
    UTF-8. An endpoint's calls have no text of their own: of them there is the error alone.
    """
    if turn.parsed is None:
        errors = [{"error": {"kind": one.kind, "message": one.message}} for one in turn.errors]
        return {"read": errors} if errors else {}
    attempts = [
        {"name": call.name, "span": list(call.span)}
        | ({} if call.error is None else {"error": _error(call.error)})
        for call in turn.parsed.attempts
    ]
    return {"read": attempts} if attempts else {}


def _error(error: toolparse.Error) -> dict[str, Any]:
    found = {"kind": error.kind, "message": error.message}
    return {**found, "span": list(error.span), "offset": error.offset}


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages without what is for the trace alone."""
    return [
        {key: value for key, value in message.items() if key in _TEMPLATE_KEYS}
        for message in messages
    ]


_TEMPLATE_KEYS = ("role", "name", "content", "reasoning_content", "tool_calls", "tool_call_id")

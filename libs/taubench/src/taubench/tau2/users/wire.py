"""What passes between the loop and a τ² user: text, so that every `turnwise.users.User` can be one.

A user who acts does so in its text, in the form of Qwen's tool calls; the results come back as the
next thing it hears. The agent's words are kept from looking like results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import toolparse

from taubench.tau2.environment import Environment, Turn
from taubench.tau2.messages import Call, Message, calls_from

_RESULT = "<tool_response>\n{}\n</tool_response>"
_RESULTS = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_TAGS = re.compile(r"</?tool_(?:call|response)>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What a user's text says.

    Attributes:
        content: The words; None if it has only calls.
        calls: What the user does with its own tools.
    """

    content: str | None
    calls: tuple[Call, ...] = ()


def write_call(name: str, arguments: Mapping[str, Any] | None = None) -> str:
    """A call as a user writes it."""
    body = json.dumps({"name": name, "arguments": dict(arguments or {})}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def read_turn(text: str) -> UserTurn:
    """A user's text taken apart. Never raises; a call that can't be read has an error."""
    parsed = toolparse.parse(text, format="qwen25", mode="lenient")
    calls = calls_from(
        [(call.name, call.arguments) for call in parsed.calls],
        [error.message for error in parsed.errors],
    )
    content = parsed.content.strip() if calls else text
    return UserTurn(content or None, calls)


def tool_results(results: Iterable[Message]) -> str:
    """Results of the user's calls, as the user hears them."""
    return "\n".join(_RESULT.format(_TAGS.sub(" ", result.content or "")) for result in results)


def read_results(heard: object) -> tuple[str, ...]:
    """The texts of the results that were heard; empty if it was the agent's words."""
    return tuple(_RESULTS.findall(heard)) if isinstance(heard, str) else ()


def words_of_agent(content: str | None) -> str:
    """The agent's words, as the user hears them."""
    return _TAGS.sub(" ", content or "")


def heard_by_user(environment: Environment) -> str:
    """What the user has to answer now: its own results, or the agent's last words."""
    results: list[Message] = []
    for message in reversed(environment.history):
        if message.role != "tool":
            break
        results.append(message)
    if results:
        return tool_results(reversed(results))
    return words_of_agent(environment.history[-1].content)


async def play_user(environment: Environment, ask: Callable[[str], Awaitable[str]]) -> str | None:
    """Lets the user speak and act until it is the agent's turn, or nobody's.

    Args:
        environment: The episode.
        ask: Gives the user what it hears and returns its text: `User.reply`, with whatever
            deadline and record the caller has for it. For the first message, `User.reset`.

    Returns:
        The user's words for the agent; None if there are none, since the episode is over.

    Raises:
        UserProtocolError: the user's text is empty.
        Whatever `ask` raises.
    """
    said: str | None = None
    while environment.turn is Turn.USER:
        turn = read_turn(await ask(heard_by_user(environment)))
        environment.user_step(turn.content, turn.calls)
        said = None if turn.calls else turn.content
    return said if environment.turn is Turn.AGENT else None

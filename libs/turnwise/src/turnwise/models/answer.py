"""What an OpenAI-compatible endpoint's answer says, whatever it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

_TOO_LONG = re.compile(
    r"context_length_exceeded|context (?:length|window)|maximum (?:context|input|prompt)|"
    r"(?:input|prompt|request) is too long|too many (?:input )?tokens|"
    r"input token count|range of input length",
    re.IGNORECASE,
)
_USED_UP = re.compile(r"insufficient_quota|billing_hard_limit|arrearage", re.IGNORECASE)


class NoAnswer(Exception):
    """The request may be sent again."""

    def __init__(self, what: str, wait_s: float | None = None) -> None:
        super().__init__(what)
        self.wait_s = wait_s


class Refused(Exception):
    """The request will never be answered."""


class TooLong(Refused):
    """The conversation does not fit."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the conversation is too long for the model: {what}")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the endpoint gave it; `arguments` is text that may be no JSON."""

    id: str
    name: str
    arguments: str


def check_status(status: int, text: str, what: str, wait_s: float | None) -> None:
    """Returns where the request was answered.

    Args:
        status: Of HTTP.
        text: The body.
        what: Status and body for people.
        wait_s: How long the endpoint asks to wait.

    Raises:
        NoAnswer: on 408, 425, 429 and 5xx.
        TooLong: whatever the status, where the body says that the conversation does not fit.
        Refused: on every other status, and where a quota is used up.
    """
    if 200 <= status < 300:
        return
    if _TOO_LONG.search(text):
        raise TooLong(what)
    if status not in (408, 425, 429) and status < 500:
        raise Refused(what)
    if _USED_UP.search(text):
        raise Refused(f"the quota of the key is used up: {what}")
    raise NoAnswer(what, wait_s)


def error_status(answer: Any) -> tuple[int, str] | None:
    """Status and text of an error that came with status 200: it counts by its `code`, else 400."""
    if not isinstance(answer, dict) or "choices" in answer or "error" not in answer:
        return None
    error = answer["error"]
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 400
    return status, msgspec.json.encode(error).decode()


def first_choice(answer: Any) -> tuple[str, str]:
    """Text and finish reason; "" where there is none, whatever the answer holds."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return "", ""
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    finish = choice.get("finish_reason")
    return (content if isinstance(content, str) else ""), (
        finish if isinstance(finish, str) else ""
    )


def tool_calls(answer: Any) -> tuple[ToolCall, ...]:
    """The first choice's calls; what is missing in one is ""."""
    try:
        found = answer["choices"][0]["message"]["tool_calls"]
    except (LookupError, TypeError):
        return ()
    calls = []
    for call in found if isinstance(found, list) else []:
        call = call if isinstance(call, dict) else {}
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        parts = (call.get("id"), function.get("name"), arguments)
        calls.append(ToolCall(*(part if isinstance(part, str) else "" for part in parts)))
    return tuple(calls)


def usage(answer: Any) -> tuple[int, int] | None:
    """Tokens read and written, None if the answer does not count both."""
    found = answer.get("usage") if isinstance(answer, dict) else None
    counts = [
        found.get(name) if isinstance(found, dict) else None
        for name in ("prompt_tokens", "completion_tokens")
    ]
    read, written = (
        count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
        for count in counts
    )
    return None if read is None or written is None else (read, written)


def encodable(value: Any) -> Any:
    """The same value with every text encodable as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {name: encodable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(part) for part in value]
    return value

"""What an OpenAI-compatible endpoint's answer says, whatever it holds. Pure.

The one reader of chat answers; whose doing each thing is stands in the table of
`turnwise.models`. Numbers from outside are bounded here, text is made encodable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise.printable import one_line
from turnwise.retry import is_transient

MAX_TOKENS = 2**24
"""No request reads or writes more; an endpoint that counts more does not count."""
_MAX_FINISH = 64
_EXCERPT = 300
REASONING = ("reasoning_content", "reasoning", "reasoning_details")
"""Where endpoints put a model's thoughts; sent back as they came (see `ChatClient.complete`)."""
_CALL_MORE = ("extra_content",)
"""Of a call: Google's endpoints keep a thought's signature there and refuse a call without."""

_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context (?:length|window|size)|"
    r"maximum (?:context|input|prompt)|(?:input|prompt|request) is too long|"
    r"too many (?:input )?tokens|input token count|range of input length",
    re.IGNORECASE,
)
_RATE = re.compile(
    r"rate.?limit|throttl|\bper[ _-]?(?:second|min|minute|hour|day)\b|\b[TR]P[MDS]\b|"
    r"please wait|try again (?:later|in)",
    re.IGNORECASE,
)
_USED_UP = re.compile(r"insufficient_quota|billing_hard_limit|arrearage", re.IGNORECASE)
# Of statuses: a request that is too large, or wrong, is refused for its length by these alone.
_LENGTH_STATUSES = (400, 413, 422)

_FAILED = frozenset(
    "error abort aborted cancelled network_error insufficient_system_resource".split()
)
_FILTERED = frozenset(
    "content_filter refusal safety sensitive recitation blocklist prohibited_content spii".split()
)
_LENGTH = frozenset("length max_tokens max_output_tokens model_length".split())
_CALLS = frozenset("tool_calls tool_call tool_use function_call".split())


class NoAnswer(Exception):
    """The request may be sent again, as long as there is time."""

    def __init__(self, what: str, wait_s: float | None = None) -> None:
        super().__init__(what)
        self.wait_s = wait_s


class Unusable(Exception):
    """An answer came that holds none; it may be asked for again a few times."""


class Refused(Exception):
    """The request will never be answered."""


class TooLong(Refused):
    """The conversation does not fit."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the conversation is too long for the model: {what}")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the endpoint gave it; `arguments` is text that may be no JSON.

    `more` goes back with it: further fields that some endpoints give and want to see again.
    """

    id: str
    name: str
    arguments: str
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """An answer.

    Attributes:
        text: The words, encodable as UTF-8.
        finish: Why it ended: `stop`, `length`, `tool_calls`, or the endpoint's own word in lower
            case; "" if it says none.
        read_tokens, written_tokens: As counted by the endpoint, else estimated.
        tool_calls: In the order in which they were made.
        refusal: The words by which the model declines, where the endpoint gives them apart.
        reasoning: The model's thoughts by the name of their field, as they came.
    """

    text: str
    finish: str
    read_tokens: int
    written_tokens: int
    tool_calls: tuple[ToolCall, ...] = ()
    refusal: str = ""
    reasoning: Mapping[str, Any] = field(default_factory=dict)


def decode(text: str, hide: Callable[[str], str] = str) -> Any:
    """The JSON of a body, every text in it encodable and passed through `hide`.

    Raises:
        Unusable: it is no JSON.
    """
    try:
        return _each_text(json.loads(text), lambda part: hide(encodable(part)))
    except (ValueError, RecursionError) as error:
        what = f"{type(error).__name__}: {one_line(str(error), 80)}"
        raise Unusable(f"no JSON ({what}): {one_line(hide(text), _EXCERPT)}") from None


def check_status(status: int | None, text: str, what: str, wait_s: float | None) -> None:
    """Returns where the request was answered. The status comes before the words.

    Args:
        status: Of HTTP, or an error's own, None if it has none.
        text: The body.
        what: Status and body for people.
        wait_s: How long the endpoint asks to wait.

    Raises:
        NoAnswer: `turnwise.retry.is_transient`, whatever the body says of tokens and contexts.
        TooLong: 400, 413 and 422, where the body says that the conversation does not fit, and
            nothing of a rate.
        Refused: every other status, and where a quota is used up.
        Unusable: an error without a status.
    """
    if status is not None and 200 <= status < 300:
        return
    if status is None or is_transient(status):
        if _USED_UP.search(text):
            raise Refused(f"the quota of the key is used up: {what}")
        if status is None:
            raise Unusable(what)
        raise NoAnswer(what, wait_s)
    if status in _LENGTH_STATUSES and _TOO_LONG.search(text) and not _RATE.search(text):
        raise TooLong(what)
    raise Refused(what)


def read_error(answer: Any) -> tuple[int | None, str] | None:
    """Status and text of an error that came with status 200, None where there is none.

    It may stand beside `choices`, in the first of them or be the whole answer. The status is its
    `code`, None if that is none of HTTP's.
    """
    if not isinstance(answer, dict):
        return None
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    found = answer.get("error") or (first.get("error") if isinstance(first, dict) else None)
    if not found and answer.get("object") == "error":
        found = answer
    if not found:
        return None
    code = found.get("code") if isinstance(found, dict) else None
    if isinstance(code, str) and re.fullmatch(r"[45]\d\d", code):
        code = int(code)
    known = isinstance(code, int) and 400 <= code < 600
    return (code if known else None), json.dumps(found, ensure_ascii=False)


def read_reply(answer: Any, *, offers_tools: bool) -> ChatReply:
    """The first choice; token counts are 0.

    Args:
        answer: As `decode` gave it, without an error.
        offers_tools: Calls count; none do where no tool was offered, whatever the model made up.

    Raises:
        Unusable: it is no chat completion, or one that did not come to its end.
    """
    choice = _first_choice(answer)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Unusable(f"a choice without a message: {_shown(choice)}")
    finish = _finish(choice.get("finish_reason"))
    if finish in _FAILED:
        raise Unusable(f"finish {finish!r}: {_shown(choice)}")
    if finish in _FILTERED:
        raise Unusable(f"finish {finish!r}, the endpoint's filter: {_shown(choice)}")
    text, refusal = _words(message)
    calls = _calls(message) if offers_tools else ()
    reasoning = {name: message[name] for name in REASONING if message.get(name)}
    if not (text or refusal or calls or finish):
        raise Unusable(f"an answer that did not end: {_shown(choice)}")
    if finish == "tool_calls" and offers_tools and not (text or refusal or calls):
        raise Unusable(f"finish 'tool_calls', without one: {_shown(choice)}")
    return ChatReply(text, finish, 0, 0, calls, refusal, reasoning)


def usage(answer: Any) -> tuple[int, int] | None:
    """Tokens read and written, None if the answer does not count both within reason."""
    found = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(found, dict):
        return None
    read = _count(found.get("prompt_tokens"))
    written = _count(found.get("completion_tokens"))
    return None if not read or written is None else (read, written)


def encodable(text: str) -> str:
    """`text` encodable as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def sendable(value: Any) -> Any:
    """The same value with every text encodable."""
    return _each_text(value, encodable)


def _first_choice(answer: Any) -> dict[str, Any]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise Unusable(f"no chat completion: {_shown(answer)}")
    return choice


def _finish(word: Any) -> str:
    if not isinstance(word, str):
        return ""
    word = one_line(word, _MAX_FINISH).lower()
    if word in _LENGTH:
        return "length"
    return "tool_calls" if word in _CALLS else word


def _words(message: Mapping[str, Any]) -> tuple[str, str]:
    """Text and refusal of a message; thoughts among its parts are left out."""
    content, refusal = message.get("content"), message.get("refusal")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        declined = [part.get("refusal") for part in parts if part.get("type") == "refusal"]
        refusal = refusal or "".join(part for part in declined if isinstance(part, str))
        said = [
            part.get("text") for part in parts if part.get("type") in (None, "text", "output_text")
        ]
        content = "".join(part for part in said if isinstance(part, str))
    if content is not None and not isinstance(content, str):
        raise Unusable(f"content that is no text: {_shown(content)}")
    return content or "", _text(refusal)


def _calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    """The calls; what is missing in one is ""."""
    found = message.get("tool_calls")
    if not found and isinstance(message.get("function_call"), dict):
        found = [{"function": message["function_call"]}]
    if not found:
        return ()
    if not isinstance(found, list) or not all(isinstance(call, dict) for call in found):
        raise Unusable(f"tool_calls that are none: {_shown(found)}")
    calls = []
    for call in found:
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append(
            ToolCall(
                _text(call.get("id")),
                _text(function.get("name")),
                _text(arguments),
                {name: call[name] for name in _CALL_MORE if call.get(name) is not None},
            )
        )
    return tuple(calls)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= MAX_TOKENS and value == int(value) else None


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(name)): _each_text(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(part, change) for part in value]
    return value


def _shown(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False), _EXCERPT)

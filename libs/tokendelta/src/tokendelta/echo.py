"""When a message that a client sends back is the turn that was delivered to it.

Clients write a turn down in their own way. A message is an echo of a turn if it is equal to it but
for what stands in this list, and nothing else:

1. whitespace around the text and around the reasoning;
2. content as one text or as text parts, and None for no text;
3. arguments of calls that are equal as JSON values of equal type (`1` is not `1.0`), however they
   are spelled; arguments whose value a reader may change (repeated keys, numbers that a double
   does not hold, no JSON at all) are compared as text;
4. calls whose arguments are no JSON object, moved behind the others;
5. the reasoning left out, or written between the think tags in front of the text;
6. ids of calls left out;
7. a stop string, which the engine took away, put back at the end;
8. the handle left out: a name of the turn, under the key `handle`, that its client was given to
   send back. One that names no turn, or another, is no echo of this one;
9. smolagents' transcript: behind the text `Calling tools:` and the list of the calls as Python
   prints it, each with the id that it was given; or, where the text ends in a block of code, that
   code as the only call (`transcribed`);
10. arguments that the turn left out, all of those for which the tool's schema has a `default`, with
   that value, as a client fills them in that checks a call by the schema (`filled`).

That one text holds the other never makes an echo. Keys of a message other than its text, reasoning
and calls are not compared: clients add their own.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")

HANDLE = "handle"

_CALLING = "Calling tools:\n"
# Characters; the dearest list of so many is read in 0.1 s.
_LONGEST_LIST = 50_000
_CODE = re.compile(r"<code>\s*((?:(?!<code>).)*?)\s*</code>\s*\Z", re.DOTALL)

# By what the closer of two echoes is known: its handle before ids, and those before reasoning.
_HANDLE, _IDS, _REASONING = 4, 2, 1


@dataclass(frozen=True, slots=True)
class Said:
    """What a turn says, by the rules above: equal for every way to write it down.

    `calls` are (name, arguments) in order, those with broken arguments last; `ids` belong to them,
    "" where there is none. `written` is the text with the whitespace that stands around it;
    `filled` are the calls with the defaults of their tools.
    """

    text: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    ids: tuple[str, ...]
    written: str
    handle: str = ""
    filled: tuple[tuple[str, str], ...] | None = None

    def with_stops(self, stops: Sequence[str]) -> set[str]:
        """The text as clients write it that put one of these stop strings back."""
        return {(text + stop).strip() for stop in stops for text in (self.text, self.written)}


def said(
    message: Mapping[str, Any],
    tags: tuple[str, str],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> Said:
    """What an assistant message says.

    `tags` open and close reasoning that stands in the text; `tools` are those of a turn that was
    sent.
    """
    written = text_of(message.get("content"))
    text = written.strip()
    reasoning = next(
        (r for f in REASONING_FIELDS if isinstance(r := message.get(f), str) and r), ""
    )
    opening, closing = tags
    if not reasoning and text.startswith(opening):
        # What stands behind the text is kept: a stop string is put back behind that.
        inner, found, rest = written.lstrip()[len(opening) :].partition(closing)
        if found:
            reasoning, text, written = inner, rest.strip(), rest
    calls, ids = _calls(message.get("tool_calls") or ())
    handle = str(message.get(HANDLE) or "")
    whole = filled(calls, tools) if tools else None
    return Said(text, reasoning.strip(), calls, ids, written, handle, whole)


def without_handle(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message as a template is to see it."""
    if HANDLE not in message:
        return message
    return {key: value for key, value in message.items() if key != HANDLE}


def echo(sent: Said, told: Said, stops: Sequence[str] = ()) -> int | None:
    """How close a message comes to the turn that was sent, or None if it is no echo of it.

    `stops` are stop strings that the engine took away. The number orders turns that say the same.
    """
    if told.calls != sent.calls and told.calls != sent.filled:
        return None
    if sent.text != told.text and told.text not in sent.with_stops(stops):
        return None
    if told.handle and told.handle != sent.handle:
        return None
    if told.reasoning and told.reasoning != sent.reasoning:
        return None
    if any(b and a and a != b for a, b in zip(sent.ids, told.ids, strict=True)):
        return None
    closeness = _HANDLE if told.handle else 0
    closeness += _IDS if any(told.ids) and told.ids == sent.ids else 0
    return closeness + (_REASONING if told.reasoning == sent.reasoning else 0)


def filled(
    calls: tuple[tuple[str, str], ...], tools: Sequence[Mapping[str, Any]]
) -> tuple[tuple[str, str], ...]:
    """Calls as `said` has them, with their tools' defaults where they say nothing."""
    made = []
    for name, spelled in calls:
        defaults = _defaults(name, tools)
        if defaults and spelled.startswith("{"):
            spelled = json.dumps({**defaults, **json.loads(spelled)}, sort_keys=True, default=str)
        made.append((name, spelled))
    return tuple(made)


def _defaults(name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            if isinstance(properties, Mapping):
                return {
                    key: one["default"]
                    for key, one in properties.items()
                    if isinstance(one, Mapping) and "default" in one
                }
    return {}


def transcribed(told: Said) -> Said | None:
    """The turn that a message says in smolagents' transcript; None where it is no such message.

    What a call is said to be must be the whole of it: Python's spelling is read and compared as
    JSON, and a call without an id, which anybody can write, is none. A code agent's turn has no
    call; its client writes one whose code is that of the block which the text ends with.
    """
    head, found, tail = told.text.rpartition(_CALLING)
    if not found or told.calls or (head and not head.endswith("\n")):
        return None
    if len(tail) > _LONGEST_LIST:
        return None
    try:
        calls = ast.literal_eval(tail)
        if json.loads(json.dumps(calls)) != calls:
            return None
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    code = _CODE.search(head)
    if code is not None and _is_code(calls, code[1]):
        return replace(told, text=head.strip(), written=head)
    names, ids = _calls(calls)
    if not ids or not all(ids):
        return None
    return replace(told, text=head.strip(), written=head, calls=names, ids=ids)


def _is_code(calls: Any, code: str) -> bool:
    """Whether the one call of a list is of smolagents' own tool, with this code."""
    if not isinstance(calls, list) or len(calls) != 1 or not isinstance(calls[0], dict):
        return False
    called = calls[0].get("function")
    return called == {"name": "python_interpreter", "arguments": code}


def text_of(content: Any) -> str:
    """Content as text: parts joined, nothing for None; a part that is no text as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        return json.dumps(content, default=str)
    return "".join(
        part["text"]
        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        else json.dumps(part, sort_keys=True, default=str)
        for part in content
    )


def _calls(calls: Any) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    sound: list[tuple[tuple[str, str], str]] = []
    broken: list[tuple[tuple[str, str], str]] = []
    for call in calls if isinstance(calls, list | tuple) else [calls]:
        given = call if isinstance(call, Mapping) else {"name": json.dumps(call, default=str)}
        function = given.get("function", given)
        if not isinstance(function, Mapping):
            function = given
        spelled, is_object = arguments_of(function.get("arguments"))
        row = ((str(function.get("name", "")), spelled), str(given.get("id") or ""))
        (sound if is_object else broken).append(row)
    rows = sound + broken
    return tuple(row[0] for row in rows), tuple(row[1] for row in rows)


class _Inexact(ValueError):
    """A value that another reader of JSON may take for another one."""


def arguments_of(arguments: Any) -> tuple[str, bool]:
    """Arguments in one spelling for each value, and whether they are a JSON object."""
    if not isinstance(arguments, str):
        return json.dumps(arguments, sort_keys=True, default=str), isinstance(arguments, Mapping)
    try:
        value = _exact.decode(arguments)
    except (ValueError, RecursionError):
        return "text " + arguments.strip(), _is_object(arguments)
    return _sorted.encode(value), isinstance(value, dict)


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Inexact("repeated key")
    return value


def _exact_float(text: str) -> float:
    value = float(text)
    try:
        exact = Decimal(text) == Decimal(repr(value))
    except InvalidOperation:  # An exponent of more digits than Decimal takes.
        exact = False
    if not exact:
        raise _Inexact("not a double")
    return value


def _refuse(name: str) -> Any:
    raise _Inexact(name)


_exact = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_exact_float, parse_constant=_refuse
)
_sorted = json.JSONEncoder(sort_keys=True)

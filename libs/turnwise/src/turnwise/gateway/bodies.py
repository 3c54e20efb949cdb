"""Bodies of requests: what came before is not read again.

An agent sends its whole history with every request, and its client writes the same message in the
same bytes. So messages are told by their bytes: one that comes again is the object that it was read
as before, of which the rollout's `tokendelta.Tree` knows the place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import tokendelta
import toolparse
from msgspec import Raw

from turnwise.gateway.requests import MAX_MESSAGES, Refusal, list_of

MAX_BYTES = 16 * 2**20
"""Of messages that are remembered. Beyond it all are forgotten, and read again when they come."""
HISTORIES = 8
"""That are remembered whole: an agent's own and those of agents within it."""

Message = dict[str, Any]
_fields = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])
_UNREAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class _History:
    """A list of items up to the end of the last one, in bytes, and what it was read as."""

    data: bytes
    count: int
    messages: list[Message]
    names: dict[str, str]


_NONE = _History(b"", 0, [], {})


class Bodies:
    """Reads the bodies of one rollout."""

    def __init__(self, tree: tokendelta.Tree | None = None) -> None:
        """Without a tree no message is remembered."""
        self._tree = tree
        self._make: Any = None
        self._messages: dict[bytes, list[Message]] = {}
        self._named: dict[tuple[int, str], Message] = {}
        self._size = 0
        self._histories: list[_History] = []
        self._tools_data, self._tools_value = b"", None
        self._tools: tuple[Any, list[Message]] = None, []
        self._toolset: tuple[list[Message], toolparse.ToolSet] | None = None

    def fields(self, data: bytes) -> dict[str, Any]:
        """The fields of a body. A list of `messages` is left unread, as `Raw`, and so are the items
        of `input`.

        Raises:
            Refusal: it is no JSON object.
        """
        try:
            fields = _fields.decode(data)
        except _UNREAD:
            body = _read(data)
            if not isinstance(body, dict):
                raise Refusal(400, "the body must be a JSON object") from None
            return body
        return {name: self._field(name, raw) for name, raw in fields.items()}

    def history(
        self, given: Any, where: str, make: Callable[[Any, int], list[Message]]
    ) -> list[Message]:
        """The messages of a field that `make` makes of its items and their numbers. What such a
        list began with before is not looked at again.

        Raises:
            Refusal: the field is no list, or empty, or too long; and as `make` does.
        """
        self._made_by(make)
        before, items = _NONE, given
        if type(given) is Raw:
            data = bytes(given)
            before = next((one for one in self._histories if _goes_on(data, one.data)), _NONE)
            rest = b"[" + data[len(before.data) + 1 :] if before.count else data
            items = _items.decode(rest)
        count = before.count + len(list_of(items, where, MAX_MESSAGES))
        if not 0 < count <= MAX_MESSAGES:
            raise Refusal(400, f"{where} has {count} entries, at most {MAX_MESSAGES}" if count
                          else f"{where} is empty", field=where)  # fmt: skip
        names = dict(before.names)
        messages = before.messages + self.messages(enumerate(items, before.count), make, names)
        if type(given) is Raw and self._tree is not None and len(data) <= MAX_BYTES // HISTORIES:
            read = _History(data[:-1].rstrip(), count, messages, names)
            others = [one for one in self._histories if one is not before]
            self._histories = [read, *others[: HISTORIES - 1]]
        return messages

    def messages(
        self,
        numbered: Iterable[tuple[int, Any]],
        make: Callable[[Any, int], list[Message]],
        names: dict[str, str],
    ) -> list[Message]:
        """What `make` makes of items and their numbers, or made of the same bytes before. Results
        of calls get the name of their tool, which some templates print.

        Args:
            names: Of the tools that were called, by the ids of calls; is added to.
        """
        self._made_by(make)
        if self._size > MAX_BYTES:
            self._forget()
        found: list[Message] = []
        for number, item in numbered:
            made = self._made(item, number, make)
            for message in made:
                for call in message.get("tool_calls") or ():
                    names[call["id"]] = call["function"]["name"]
                called = names.get(message["tool_call_id"]) if message["role"] == "tool" else None
                found.append(message if called is None else self._with_name(message, called))
        return found

    def tools(self, given: Any, make: Callable[[Any], list[Message]]) -> list[Message]:
        """What `make` makes of the field `tools`, or made of the same bytes before."""
        if given is not self._tools_value or self._tools[0] is not make:
            made = make(given)
            if given is not self._tools_value:
                return made
            self._tools = make, made
        return self._tools[1]

    def toolset(self, tools: list[Message]) -> toolparse.ToolSet | None:
        """Tools to read calls by, None for none; compiled once while the same bytes come."""
        if not tools:
            return None
        if self._toolset is None or self._toolset[0] is not tools:
            self._toolset = tools, toolparse.ToolSet(tools)
        return self._toolset[1]

    def _made_by(self, make: Any) -> None:
        """What another dialect makes of the same bytes is another thing."""
        if make is not self._make:
            self._forget()
            self._make = make

    def _forget(self) -> None:
        self._messages, self._named, self._size, self._histories = {}, {}, 0, []

    def _made(
        self, item: Any, number: int, make: Callable[[Any, int], list[Message]]
    ) -> list[Message]:
        if type(item) is not Raw:
            return make(item, number)
        data = bytes(item)
        made = self._messages.get(data)
        if made is None:
            made = make(_read(data), number)
            if self._tree is not None:
                made = [self._tree.known(message) for message in made]
                self._messages[data] = made
                self._size += len(data)
        return made

    def _field(self, name: str, raw: Raw) -> Any:
        if name not in ("messages", "input", "tools"):
            return _read(raw)
        data = bytes(raw)
        if name == "tools":
            if data != self._tools_data:
                self._tools_value, self._tools_data, self._tools = _read(data), data, (None, [])
            return self._tools_value
        if data[:1] != b"[":
            return _read(data)
        return raw if name == "messages" else _items.decode(raw)

    def _with_name(self, message: Message, name: str) -> Message:
        if self._tree is None or not isinstance(message, tokendelta.Known):
            return {**message, "name": name}
        key = id(message), name
        if key not in self._named:
            self._named[key] = self._tree.known({**message, "name": name})
        return self._named[key]


def _goes_on(data: bytes, before: bytes) -> bool:
    """Whether a list begins with the items of another, all of them, and has more."""
    return data.startswith(before) and data[len(before) : len(before) + 1] == b","


def _read(data: bytes | Raw) -> Any:
    """As Python's own reader, which takes more than JSON (NaN, halves of surrogate pairs) and half
    the speed."""
    try:
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON: {type(error).__name__}: {error}") from None

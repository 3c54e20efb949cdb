"""Bodies of requests: what came before is not read again.

An agent sends its whole history with every request, and its client writes the same message in the
same bytes. So messages are told by their bytes: one that comes again is the object that it was read
as before, of which the rollout's `tokendelta.Tree` knows the place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import tokendelta
from msgspec import Raw

from turnwise.gateway.requests import Refusal

MAX_BYTES = 16 * 2**20
"""Of messages that are remembered. Beyond it all are forgotten, and read again when they come."""

Message = dict[str, Any]
_fields = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])
_UNREAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Bodies:
    """Reads the bodies of one rollout."""

    def __init__(self, tree: tokendelta.Tree | None = None) -> None:
        """Without a tree no message is remembered."""
        self._tree = tree
        self._messages: dict[bytes, list[Message]] = {}
        self._named: dict[tuple[int, str], Message] = {}
        self._size = 0
        self._tools_data, self._tools_value = b"", None
        self._tools: tuple[Any, list[Message]] = None, []

    def fields(self, data: bytes) -> dict[str, Any]:
        """The fields of a body; the items of `messages` and `input` are left unread, as `Raw`.

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

    def messages(
        self, numbered: Iterable[tuple[int, Any]], make: Callable[[Any, int], list[Message]]
    ) -> list[Message]:
        """What `make` makes of items and their numbers, or made of the same bytes before.

        Raises:
            Refusal: as `make` does.
        """
        if self._size > MAX_BYTES:
            self._messages, self._named, self._size = {}, {}, 0
        found: list[Message] = []
        for number, item in numbered:
            if type(item) is not Raw:
                found += make(item, number)
                continue
            data = bytes(item)
            made = self._messages.get(data)
            if made is None:
                made = make(_read(data), number)
                if self._tree is not None:
                    made = [self._tree.known(message) for message in made]
                    self._messages[data] = made
                    self._size += len(data)
            found += made
        return found

    def with_tool_names(self, messages: list[Message]) -> list[Message]:
        """Gives results of calls the name of their tool, which some templates print."""
        names: dict[str, str] = {}
        for index, message in enumerate(messages):
            for call in message.get("tool_calls") or ():
                names[call["id"]] = call["function"]["name"]
            if message["role"] == "tool":
                called = names.get(message["tool_call_id"])
                if called is not None:
                    messages[index] = self._with_name(message, called)
        return messages

    def tools(self, given: Any, make: Callable[[Any], list[Message]]) -> list[Message]:
        """What `make` makes of the field `tools`, or made of the same bytes before."""
        if given is not self._tools_value or self._tools[0] is not make:
            made = make(given)
            if given is not self._tools_value:
                return made
            self._tools = make, made
        return self._tools[1]

    def _field(self, name: str, raw: Raw) -> Any:
        if name in ("messages", "input"):
            try:
                return _items.decode(raw)
            except _UNREAD:
                return _read(raw)
        if name != "tools":
            return _read(raw)
        data = bytes(raw)
        if data != self._tools_data:
            self._tools_value, self._tools_data, self._tools = _read(data), data, (None, [])
        return self._tools_value

    def _with_name(self, message: Message, name: str) -> Message:
        if self._tree is None or not isinstance(message, tokendelta.Known):
            return {**message, "name": name}
        key = id(message), name
        if key not in self._named:
            self._named[key] = self._tree.known({**message, "name": name})
        return self._named[key]


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

"""The repairs of `lenient` mode, each by name. A truncated string is never closed."""

from __future__ import annotations

import json
import re
from typing import Any

from toolparse.grammars.grammar import Repaired

MAX_DEPTH = 128
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_PLAIN_SINGLE = re.compile(r"[^'\\\x00-\x1f]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SPACE = re.compile(r"[ \t\r\n]*")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_WORDS = {
    "true": (True, None),
    "false": (False, None),
    "null": (None, None),
    "True": (True, "python_literal"),
    "False": (False, "python_literal"),
    "None": (None, "python_literal"),
}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/"} | dict(
    zip("bfnrt", "\b\f\n\r\t", strict=True)
)


class _Hopeless(Exception):
    """No repair is known for this."""


class _Tolerant:
    """A JSON reader that accepts known slips and remembers which."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.repairs: list[str] = []

    def note(self, name: str) -> None:
        if name not in self.repairs:
            self.repairs.append(name)

    def peek(self) -> str:
        found = _SPACE.match(self.text, self.pos)
        assert found
        self.pos = found.end()
        return self.text[self.pos : self.pos + 1]

    def value(self, depth: int = 0) -> Any:
        first = self.peek()
        if depth > MAX_DEPTH or not first:
            raise _Hopeless
        if first == "{":
            return self.mapping(depth + 1)
        if first == "[":
            return self.sequence(depth + 1)
        if first in "\"'":
            return self.string(first)
        for word, (value, repair) in _WORDS.items():
            if self.text.startswith(word, self.pos):
                self.pos += len(word)
                if repair:
                    self.note(repair)
                return value
        found = _NUMBER.match(self.text, self.pos)
        if not found or len(found.group()) > 4000:
            raise _Hopeless
        self.pos = found.end()
        value = json.loads(found.group())
        if value in (float("inf"), float("-inf")):
            raise _Hopeless
        return value

    def more(self, closer: str) -> bool:
        """After an item: whether another one follows."""
        first = self.peek()
        if first == ",":
            self.pos += 1
            first = self.peek()
            if first and first != closer:
                return True
            self.note("trailing_comma")
        if first == closer:
            self.pos += 1
            return False
        if not first:
            self.note("close_brackets")
            return False
        raise _Hopeless

    def mapping(self, depth: int) -> dict[str, Any]:
        self.pos += 1
        result: dict[str, Any] = {}
        first = self.peek()
        if first == "}":
            self.pos += 1
            return result
        if not first:
            self.note("close_brackets")
            return result
        while True:
            first = self.peek()
            if first not in ('"', "'"):
                raise _Hopeless
            key = self.string(first)
            if self.peek() != ":":
                raise _Hopeless
            self.pos += 1
            if key in result:
                self.note("last_wins")
            result[key] = self.value(depth)
            if not self.more("}"):
                return result

    def sequence(self, depth: int) -> list[Any]:
        self.pos += 1
        result: list[Any] = []
        first = self.peek()
        if first == "]":
            self.pos += 1
            return result
        if not first:
            self.note("close_brackets")
            return result
        while True:
            result.append(self.value(depth))
            if not self.more("]"):
                return result

    def string(self, quote: str) -> str:
        if quote == "'":
            self.note("python_literal")
        plain = _PLAIN if quote == '"' else _PLAIN_SINGLE
        parts: list[str] = []
        text = self.text
        pos = self.pos + 1
        while True:
            found = plain.match(text, pos)
            if found:
                parts.append(found.group())
                pos = found.end()
            if pos >= len(text):
                raise _Hopeless
            c = text[pos]
            if c == quote:
                self.pos = pos + 1
                return "".join(parts)
            if c != "\\":
                self.note("control_char_in_string")
                parts.append(c)
                pos += 1
                continue
            pos = self.escape(pos, quote, parts)

    def escape(self, pos: int, quote: str, parts: list[str]) -> int:
        text = self.text
        letter = text[pos + 1 : pos + 2]
        if letter == "'" and quote == '"':
            raise _Hopeless
        if letter in _ESCAPES and letter:
            parts.append(_ESCAPES[letter])
            return pos + 2
        if letter != "u" or not _HEX.match(text, pos + 2):
            raise _Hopeless
        unit = int(text[pos + 2 : pos + 6], 16)
        pos += 6
        if not 0xD800 <= unit <= 0xDFFF:
            parts.append(chr(unit))
            return pos
        if unit < 0xDC00 and text.startswith("\\u", pos) and _HEX.match(text, pos + 2):
            low = int(text[pos + 2 : pos + 6], 16)
            if 0xDC00 <= low <= 0xDFFF:
                parts.append(chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)))
                return pos + 6
        self.note("lone_surrogate")
        parts.append("\ufffd")
        return pos


def tolerant(text: str) -> tuple[Any, tuple[str, ...]] | None:
    """The JSON value of `text` with the repairs it took, or None."""
    reader = _Tolerant(text)
    try:
        value = reader.value()
    except (_Hopeless, RecursionError):
        return None
    if reader.peek():
        reader.note("extra_data")
    return value, tuple(reader.repairs)


def call_object(
    body: bytes, names: tuple[bytes, ...], arguments: tuple[bytes, ...], made: tuple[str, ...]
) -> Repaired | None:
    """The call in a faulty object; names and arguments are the quoted keys to look for."""
    found = tolerant(body.decode("utf-8", "replace"))
    if found is None or not isinstance(found[0], dict):
        return None
    value, repairs = found
    name = next((value[k] for q in names if (k := q[1:-1].decode()) in value), None)
    given = [value[k] for q in arguments if (k := q[1:-1].decode()) in value]
    if not isinstance(name, str) or not name or len(given) > 1:
        return None
    fixed = given_object(given[0] if given else {})
    if fixed is None:
        return None
    return Repaired(name, fixed[0], tuple(dict.fromkeys(made + repairs + fixed[1])))


def given_object(value: Any) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """Arguments as an object, with the repairs it took."""
    if isinstance(value, dict):
        return value, ()
    if value is None or value == "":
        return {}, ("empty_arguments",)
    if isinstance(value, str):
        inner = tolerant(value)
        if inner is not None and isinstance(inner[0], dict):
            return inner[0], ("args_json_string", *inner[1])
    return None

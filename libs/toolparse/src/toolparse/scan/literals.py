"""Python calls with literal arguments: `f(a=1, b=["x"])`, read and never evaluated."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any

MAX_DEPTH = 128
MAX_DIGITS = 4000
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*(?:[.-][A-Za-z_0-9]+)*")
_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(
    rb"[+-]?(?:0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+"
    rb"|(?:[0-9](?:_?[0-9])*)?\.?[0-9](?:_?[0-9])*\.?(?:[eE][+-]?[0-9]+)?)"
)
_ESCAPE = re.compile(
    r"\\(\r\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|.)", re.DOTALL
)
_SIMPLE = {
    "\n": "", "\r\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f",
    "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
WORDS = {b"True": True, b"False": False, b"None": None}
JSON_WORDS = {b"true": True, b"false": False, b"null": None}


class Cut(Exception):
    """The text ended inside the literal."""


class Bad(Exception):
    """The text at `offset` is no literal."""

    def __init__(self, offset: int, kind: str = "bad_literal") -> None:
        self.offset = offset
        self.kind = kind


def unescaped(text: str) -> str:
    """The value of a string literal's inside; raises ValueError for what Python refuses."""

    def one(found: re.Match[str]) -> str:
        body = found.group(1)
        if body in _SIMPLE:
            return _SIMPLE[body]
        if body[0] in "01234567":
            return chr(int(body, 8))
        if body[0] in "xuU" and len(body) > 1:
            code = int(body[1:], 16)
            if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
                raise ValueError("no such character")
            return chr(code)
        if body[0] == "N" and len(body) > 1:
            try:
                return unicodedata.lookup(body[2:-1])
            except KeyError:
                raise ValueError("no such character") from None
        if body in "xuUN":
            raise ValueError("broken escape")
        return "\\" + body

    return _ESCAPE.sub(one, text) if "\\" in text else text


class Reader:
    """Reads calls from data[:n]; `repairs` is None where nothing may be repaired."""

    def __init__(self, data: bytes | bytearray, n: int, repairs: list[str] | None = None) -> None:
        self.data = data
        self.n = n
        self.repairs = repairs

    def space(self, pos: int) -> int:
        while pos < self.n and self.data[pos] in b" \t\r\n":
            pos += 1
        if pos >= self.n:
            raise Cut
        return pos

    def value(self, pos: int, depth: int = 0) -> tuple[Any, int]:
        """(value, offset after it)."""
        data = self.data
        if pos >= self.n:
            raise Cut
        first = data[pos : pos + 1]
        if first in (b'"', b"'"):
            return self.string(pos)
        if first in (b"[", b"(", b"{"):
            if depth >= MAX_DEPTH:
                raise Bad(pos, "too_deep")
            return self.mapping(pos, depth + 1) if first == b"{" else self.items(pos, depth + 1)
        found = _NUMBER.match(data, pos, self.n)
        if found:
            return self.number(found)
        if first in b"+-." and pos + 1 >= self.n:
            raise Cut
        found = _WORD.match(data, pos, self.n)
        if found:
            word = bytes(found.group())
            if found.end() == self.n:
                raise Cut
            if word in WORDS and data[found.end()] not in b"\"'":
                return WORDS[word], found.end()
            if word in JSON_WORDS and self.repairs is not None:
                self.repairs.append("python_literal")
                return JSON_WORDS[word], found.end()
        raise Bad(pos)

    def number(self, found: re.Match[bytes]) -> tuple[Any, int]:
        text = found.group().decode()
        end = found.end()
        if end == self.n:
            raise Cut
        if len(text) > MAX_DIGITS:
            raise Bad(found.start(), "too_long")
        digits = text.lstrip("+-").replace("_", "")
        try:
            if digits[:2].lower() in ("0x", "0o", "0b"):
                value: Any = int(digits, 0)
            elif digits.isdigit():
                if digits[0] == "0" and digits.strip("0"):
                    raise ValueError("leading zero")
                value = int(digits)
            else:
                value = float(digits)
        except ValueError:
            raise Bad(found.start()) from None
        if isinstance(value, float) and math.isinf(value):
            raise Bad(found.start(), "too_long")
        if self.data[end : end + 1].isalnum():
            raise Bad(end)
        return (-value if text[0] == "-" else value), end

    def string(self, pos: int) -> tuple[str, int]:
        data = self.data
        quote = bytes(data[pos : pos + 1])
        long = data.startswith(quote * 3, pos, self.n)
        if not long and self.n - pos < 3 and data[pos : self.n] == quote * (self.n - pos):
            raise Cut
        close = quote * 3 if long else quote
        start = at = pos + len(close)
        while True:
            end = data.find(close, at, self.n)
            slash = data.find(b"\\", at, end if end >= 0 else self.n)
            if slash < 0:
                break
            at = slash + 2
        if end < 0:
            line = data.find(b"\n", start, self.n)
            if not long and line >= 0 and self.repairs is None:
                raise Bad(line)
            raise Cut
        if not long and (line := data.find(b"\n", start, end)) >= 0:
            back = line - 1
            while back >= start and data[back] == 0x5C:
                back -= 1
            if (line - 1 - back) % 2 == 0:
                if self.repairs is None:
                    raise Bad(line)
                self.repairs.append("control_char_in_string")
        try:
            text = unescaped(data[start:end].decode("utf-8", "replace"))
        except (ValueError, OverflowError):
            raise Bad(pos) from None
        return text, end + len(close)

    def items(self, pos: int, depth: int) -> tuple[list[Any], int]:
        """A list; a tuple is read as a list."""
        closer = 0x5D if self.data[pos] == 0x5B else 0x29
        opened = pos
        result: list[Any] = []
        commas = 0
        pos = self.space(pos + 1)
        while self.data[pos] != closer:
            value, pos = self.value(pos, depth)
            result.append(value)
            pos = self.space(pos)
            if self.data[pos] == 0x2C:
                commas += 1
                pos = self.space(pos + 1)
            elif self.data[pos] != closer:
                raise Bad(pos)
        if closer == 0x29 and len(result) == 1 and not commas:
            raise Bad(opened)
        return result, pos + 1

    def mapping(self, pos: int, depth: int) -> tuple[dict[Any, Any], int]:
        result: dict[Any, Any] = {}
        pos = self.space(pos + 1)
        while self.data[pos] != 0x7D:
            start = pos
            key, pos = self.value(pos, depth)
            if not isinstance(key, str):
                raise Bad(start)
            pos = self.space(pos)
            if self.data[pos] != 0x3A:
                raise Bad(pos)
            if key in result:
                raise Bad(start, "duplicate_key")
            result[key], pos = self.value(self.space(pos + 1), depth)
            pos = self.space(pos)
            if self.data[pos] == 0x2C:
                pos = self.space(pos + 1)
            elif self.data[pos] != 0x7D:
                raise Bad(pos)
        return result, pos + 1


class CallText:
    """One call as it stands: spans, and the arguments as far as they were read."""

    __slots__ = ("args_span", "arguments", "end", "fault", "name", "name_span", "start", "values")

    def __init__(self) -> None:
        self.start = self.end = -1
        self.name: str | None = None
        self.name_span: tuple[int, int] | None = None
        self.args_span: tuple[int, int] | None = None
        self.arguments: dict[str, Any] = {}
        self.values: dict[str, tuple[int, int]] = {}
        self.fault: tuple[str, int] | None = None


def read_call(reader: Reader, pos: int, call: CallText) -> None:
    """Reads `NAME(k=literal, ...)` at `pos`; raises Cut or Bad, with `call` filled so far.

    A positional or repeated argument is a fault of the call that does not end the reading.
    """
    data, n = reader.data, reader.n
    call.start = pos
    found = _NAME.match(data, pos, n)
    if not found:
        raise Bad(pos, "malformed_tag")
    if found.end() == n:
        raise Cut
    after = reader.space(found.end())
    if data[after] != 0x28:
        raise Bad(after, "malformed_tag")
    call.name = found.group().decode()
    call.name_span = found.span()
    pos = reader.space(after + 1)
    first = pos
    while data[pos] != 0x29:
        word = _WORD.match(data, pos, n)
        if word and word.end() == n:
            raise Cut
        equals = reader.space(word.end()) if word else pos
        if word and data[equals] == 0x3D:
            key = word.group().decode()
            start = reader.space(equals + 1)
            value, pos = reader.value(start)
            if key in call.values and call.fault is None:
                call.fault = ("duplicate_key", word.start())
            call.arguments[key] = value
            call.values[key] = (start, pos)
        else:
            start = pos
            _, pos = reader.value(pos)
            if call.fault is None:
                call.fault = ("positional_argument", start)
        last = pos
        call.args_span = (first, last)
        pos = reader.space(pos)
        if data[pos] == 0x2C:
            pos = reader.space(pos + 1)
        elif data[pos] != 0x29:
            raise Bad(pos)
    call.end = pos + 1

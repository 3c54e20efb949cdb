"""Gemma's own literals: `call:NAME{k:<|"|>text<|"|>,n:2,o:{a:[1,2]}}`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolparse.driver.run import Run
from toolparse.grammars.grammar import (
    NEED_MORE,
    WAIT,
    Fault,
    Grammar,
    Repaired,
    Span,
    Written,
    skip_space,
)
from toolparse.scan.json_value import json_value
from toolparse.scan.literals import Bad, Cut
from toolparse.scan.pairs import begun

MAX_DEPTH = 128
CALL = b"call:"
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_.-]*")
_KEY = re.compile(rb"[^\s:,{}\[\]<>\"]{1,256}")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {b"true": True, b"false": False, b"null": None}


class Gemma(Grammar):
    """quote: the token on both sides of a string."""

    def __init__(self, open_tag: bytes, close_tag: bytes, quote: bytes) -> None:
        self.open = open_tag
        self.close = close_tag
        self.quote = quote
        self.openers = (open_tag,)
        super().__init__()

    def write(self, calls: Sequence[Written]) -> str:
        return "".join(
            f"{self.open.decode()}call:{name}{self.spell(arguments)}{self.close.decode()}"
            for name, arguments in calls
        )

    def spell(self, arguments: Mapping[str, Any]) -> str:
        return self.literal(dict(arguments))

    def literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote.decode()}{value}{self.quote.decode()}"
        if isinstance(value, list):
            return "[" + ",".join(map(self.literal, value)) + "]"
        if isinstance(value, dict):
            return (
                "{" + ",".join(self.key(k) + ":" + self.literal(v) for k, v in value.items()) + "}"
            )
        return json.dumps(value)

    def key(self, key: str) -> str:
        return key if _KEY.fullmatch(key.encode()) else self.literal(key)

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        pos = skip_space(data, at + len(self.open), n)
        if n - pos < len(CALL) and CALL.startswith(bytes(data[pos:n])):
            return None
        return data.startswith(CALL, pos, n)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        reader = _Reader(data, n, self.quote)
        name: str | None = None
        name_span: Span | None = None
        values: dict[str, Span] = {}
        try:
            pos = reader.expect(reader.space(at + len(self.open)), CALL)
            found = _NAME.match(data, pos, n)
            if not found:
                if pos >= n:
                    raise Cut
                raise Bad(pos, "missing_name")
            if found.end() >= n:
                raise Cut
            name, name_span = found.group().decode(), found.span()
            pos = reader.space(found.end())
            if data[pos] != 0x7B:
                raise Bad(pos, "malformed_tag")
            arguments, end = reader.mapping(pos, 1, values)
            close = reader.expect(reader.space(end), self.close, "extra_data")
        except Cut:
            if not final:
                run.wait = self.close
                return NEED_MORE
            run.add(
                (at, n), name=name, name_span=name_span, fault=Fault("unclosed", n), arguments=None
            )
            return n
        except Bad as bad:
            start = at + len(self.open)
            if name is None and bad.kind == "malformed_tag":
                after = self.mention(run, start, n, final, (self.close,))
                if after != 0:
                    return after
            stop, which = self.ahead(run, start, bad.offset, n, final, (self.close,))
            if stop == WAIT:
                run.wait = self.close
                return NEED_MORE
            end = n if stop < 0 else stop + (len(self.close) if which == 0 else 0)
            run.add(
                (at, end),
                name=name,
                name_span=name_span,
                fault=Fault(bad.kind, bad.offset),
                repair=lambda: self.repaired(run.data, name, name_span, end),
                arguments=None,
            )
            return end
        run.add(
            (at, close),
            name=name,
            name_span=name_span,
            args_span=(pos, end),
            arguments=arguments,
            values=values,
        )
        return close

    def repaired(
        self, data: bytes | bytearray, name: str | None, name_span: Span | None, end: int
    ) -> Repaired | None:
        """The call with strings quoted as JSON quotes them, where that is all."""
        if name is None or name_span is None:
            return None
        reader = _Reader(data, end, self.quote, json_strings=True)
        try:
            arguments, pos = reader.mapping(reader.space(name_span[1]), 1)
            reader.expect(reader.space(pos), self.close)
        except (Bad, Cut):
            return None
        return Repaired(name, arguments, ("json_string",))


class _Reader:
    def __init__(
        self, data: bytes | bytearray, n: int, quote: bytes, json_strings: bool = False
    ) -> None:
        self.data = data
        self.n = n
        self.quote = quote
        self.json_strings = json_strings

    def space(self, pos: int) -> int:
        pos = skip_space(self.data, pos, self.n)
        if pos >= self.n:
            raise Cut
        return pos

    def expect(self, pos: int, word: bytes, kind: str = "malformed_tag") -> int:
        if self.data.startswith(word, pos, self.n):
            return pos + len(word)
        if word.startswith(bytes(self.data[pos : self.n])):
            raise Cut
        raise Bad(pos, kind)

    def json_string(self, pos: int) -> tuple[str, int]:
        code, end, _, _ = json_value(self.data, pos, self.n)
        if code:
            raise Bad(pos, "bad_literal")
        return json.loads(bytes(self.data[pos:end])), end

    def quoted(self, pos: int) -> tuple[str, int]:
        start = pos + len(self.quote)
        end = self.data.find(self.quote, start, self.n)
        if end < 0:
            raise Cut
        return self.data[start:end].decode("utf-8", "replace"), end + len(self.quote)

    def mapping(
        self, pos: int, depth: int, spans: dict[str, Span] | None = None
    ) -> tuple[dict[str, Any], int]:
        result: dict[str, Any] = {}
        pos = self.space(pos + 1)
        while self.data[pos] != 0x7D:
            start = pos
            if self.data.startswith(self.quote, pos, self.n):
                key, pos = self.quoted(pos)
            elif self.json_strings and self.data[pos] == 0x22:
                key, pos = self.json_string(pos)
            else:
                found = _KEY.match(self.data, pos, self.n)
                if not found:
                    if self.quote.startswith(bytes(self.data[pos : self.n])):
                        raise Cut
                    raise Bad(pos, "bad_literal")
                key, pos = found.group().decode("utf-8", "replace"), found.end()
            pos = self.space(pos)
            if self.data[pos] != 0x3A:
                raise Bad(pos, "bad_literal")
            if key in result:
                raise Bad(start, "duplicate_key")
            start = self.space(pos + 1)
            result[key], pos = self.value(start, depth)
            if spans is not None:
                spans[key] = (start, pos)
            pos = self.next(pos, 0x7D)
        return result, pos + 1

    def next(self, pos: int, closer: int) -> int:
        """After an item: the next one, or the closer."""
        pos = self.space(pos)
        if self.data[pos] == 0x2C:
            return self.space(pos + 1)
        if self.data[pos] != closer:
            raise Bad(pos, "bad_literal")
        return pos

    def value(self, pos: int, depth: int) -> tuple[Any, int]:
        data = self.data
        if data.startswith(self.quote, pos, self.n):
            return self.quoted(pos)
        if self.json_strings and data[pos] == 0x22:
            return self.json_string(pos)
        if data[pos] in b"{[":
            if depth >= MAX_DEPTH:
                raise Bad(pos, "too_deep")
            if data[pos] == 0x7B:
                return self.mapping(pos, depth + 1)
            items: list[Any] = []
            pos = self.space(pos + 1)
            while data[pos] != 0x5D:
                item, pos = self.value(pos, depth + 1)
                items.append(item)
                pos = self.next(pos, 0x5D)
            return items, pos + 1
        for word, value in _WORDS.items():
            if data.startswith(word, pos, self.n):
                return value, pos + len(word)
        found = _NUMBER.match(data, pos, self.n)
        if found:
            if found.end() >= self.n:
                raise Cut
            if len(found.group()) > 4000:
                raise Bad(pos, "too_long")
            number = json.loads(found.group())
            if number in (float("inf"), float("-inf")):
                raise Bad(pos, "too_long")
            return number, found.end()
        if any(begun(word, data, pos, self.n) for word in (*_WORDS, self.quote, b"-")):
            raise Cut
        raise Bad(pos, "bad_literal")

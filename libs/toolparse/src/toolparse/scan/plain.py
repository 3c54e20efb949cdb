"""The scanners of `json_value.pyx` in plain Python: the same contract, read with `re` and `json`.

Slower and shorter. The tests hold the compiled scanners against it.
"""

import json
import math
import re
from typing import Final

MAX_DEPTH: Final = 128
MAX_DIGITS: Final = 4000

OK, TRUNCATED, SYNTAX, CONTROL, SURROGATE, DEPTH, NUMBER = range(7)

_SPACE = re.compile(rb"[ \t\r\n]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX = re.compile(rb"[0-9a-fA-F]{4}")
_NUMBER = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# What may stand where a number breaks off at the end of the text.
_NUMBER_STUMP = re.compile(rb"-?((0|[1-9][0-9]*)(\.|(\.[0-9]+)?[eE][+-]?))?\Z")

Members = list[tuple[int, int, int, int]]


class _Fault(Exception):
    def __init__(self, code: int, offset: int) -> None:
        self.code = code
        self.offset = offset


class _Reader:
    def __init__(self, data: bytes | bytearray, n: int) -> None:
        self.data = bytes(data[:n])
        self.n = n
        self.duplicate = -1
        self.members: Members = []

    def space(self, pos: int) -> int:
        found = _SPACE.match(self.data, pos)
        assert found
        return self.wanted(found.end())

    def wanted(self, pos: int) -> int:
        if pos >= self.n:
            raise _Fault(TRUNCATED, self.n)
        return pos

    def unit(self, pos: int) -> int:
        found = _HEX.match(self.data, pos)
        if found:
            return int(found.group(), 16)
        rest = self.data[pos : pos + 4]
        if len(rest) < 4 and re.fullmatch(rb"[0-9a-fA-F]*", rest):
            raise _Fault(TRUNCATED, self.n)
        raise _Fault(SYNTAX, -1)

    def escape(self, pos: int) -> int:
        """The offset after the escape at `pos`."""
        mark = pos
        letter = self.data[self.wanted(pos + 1)]
        if letter in b'"\\/bfnrt':
            return pos + 2
        if letter != 0x75:
            raise _Fault(SYNTAX, mark)
        try:
            unit = self.unit(pos + 2)
            pos += 6
            if 0xDC00 <= unit <= 0xDFFF:
                raise _Fault(SURROGATE, mark)
            if not 0xD800 <= unit <= 0xDBFF:
                return pos
            if self.data[pos : pos + 2] in (b"", b"\\") and pos + 2 > self.n:
                raise _Fault(TRUNCATED, self.n)
            if self.data[pos : pos + 2] != b"\\u":
                raise _Fault(SURROGATE, mark)
            mark_low = pos
            low = self.unit(pos + 2)
        except _Fault as fault:
            if fault.offset < 0:
                fault.offset = mark if pos == mark else mark_low
            raise
        if not 0xDC00 <= low <= 0xDFFF:
            raise _Fault(SURROGATE, mark)
        return pos + 6

    def string(self, pos: int) -> int:
        pos += 1
        while True:
            found = _PLAIN.match(self.data, pos)
            assert found
            pos = self.wanted(found.end())
            if self.data[pos] == 0x22:
                return pos + 1
            if self.data[pos] < 0x20:
                raise _Fault(CONTROL, pos)
            pos = self.escape(pos)

    def number(self, pos: int) -> int:
        found = _NUMBER.match(self.data, pos)
        stump = _NUMBER_STUMP.match(self.data, pos)
        if stump and (not found or stump.end() > found.end()):
            raise _Fault(TRUNCATED, self.n)
        if not found:
            raise _Fault(SYNTAX, pos)
        whole, fraction, exponent = found.groups()
        after = self.data[found.end() : found.end() + 1]
        if after == b"." and fraction is None and exponent is None:
            raise _Fault(SYNTAX, found.end() + 1)
        if after in (b"e", b"E") and exponent is None:
            signed = self.data[found.end() + 1 : found.end() + 2] in (b"+", b"-")
            raise _Fault(SYNTAX, found.end() + 1 + signed)
        if len(whole) + len(fraction or b"") > MAX_DIGITS:
            raise _Fault(NUMBER, pos)
        if (fraction or exponent) and math.isinf(float(found.group())):
            raise _Fault(NUMBER, pos)
        return found.end()

    def word(self, pos: int, word: bytes) -> int:
        have = self.data[pos : pos + len(word)]
        if have == word:
            return pos + len(word)
        raise _Fault(*((TRUNCATED, self.n) if word.startswith(have) else (SYNTAX, pos)))

    def key(self, pos: int) -> tuple[int, int]:
        """The end of the key at `pos` and the offset of its value."""
        if self.data[self.wanted(pos)] != 0x22:
            raise _Fault(SYNTAX, pos)
        end = self.string(pos)
        colon = self.space(end)
        if self.data[colon] != 0x3A:
            raise _Fault(SYNTAX, colon)
        found = _SPACE.match(self.data, colon + 1)
        assert found
        return end, found.end()

    def mapping(self, pos: int, depth: int) -> int:
        seen: set[str] = set()
        repeated = -1
        pos = self.space(pos + 1)
        while self.data[pos] != 0x7D:
            start = pos
            end, pos = self.key(pos)
            key = json.loads(self.data[start:end])
            if key in seen and repeated < 0:
                repeated = start
            seen.add(key)
            if depth == 1:
                self.members.append((start, end, pos, -1))
            pos = self.value(self.wanted(pos), depth)
            if depth == 1:
                self.members[-1] = (*self.members[-1][:3], pos)
            pos = self.space(pos)
            if self.data[pos] == 0x2C:
                pos = self.space(pos + 1)
                if self.data[pos] == 0x7D:
                    raise _Fault(SYNTAX, pos)
            elif self.data[pos] != 0x7D:
                raise _Fault(SYNTAX, pos)
        if repeated >= 0 and (self.duplicate < 0 or repeated < self.duplicate):
            self.duplicate = repeated
        return pos + 1

    def sequence(self, pos: int, depth: int) -> int:
        pos = self.space(pos + 1)
        if self.data[pos] == 0x5D:
            return pos + 1
        while True:
            pos = self.space(self.value(pos, depth))
            if self.data[pos] == 0x5D:
                return pos + 1
            if self.data[pos] != 0x2C:
                raise _Fault(SYNTAX, pos)
            pos = self.space(pos + 1)

    def value(self, pos: int, depth: int) -> int:
        first = self.data[pos]
        if first in b"{[":
            if depth == MAX_DEPTH:
                raise _Fault(DEPTH, pos)
            return (self.mapping if first == 0x7B else self.sequence)(pos, depth + 1)
        if first == 0x22:
            return self.string(pos)
        if first in b"-0123456789":
            return self.number(pos)
        for word in (b"true", b"false", b"null"):
            if first == word[0]:
                return self.word(pos, word)
        raise _Fault(SYNTAX, pos)


def json_value(data: bytes | bytearray, pos: int, n: int) -> tuple[int, int, int, Members]:
    """See `json_value.json_value`."""
    reader = _Reader(data, n)
    if pos < 0 or n > len(data) or pos >= n:
        return TRUNCATED, n, -1, []
    try:
        end = reader.value(pos, 0)
    except _Fault as fault:
        return fault.code, fault.offset, reader.duplicate, reader.members
    return OK, end, reader.duplicate, reader.members


def find_any(
    data: bytes | bytearray, pos: int, n: int, markers: tuple[bytes, ...]
) -> tuple[int, int]:
    """See `_scan.find_any`."""
    if not markers or len(markers) > 16 or pos >= n or n > len(data):
        return -1, -1
    found = re.compile(b"|".join(b"(" + re.escape(m) + b")" for m in markers)).search(data, pos, n)
    if not found:
        return -1, -1
    assert found.lastindex
    return found.start(), found.lastindex - 1

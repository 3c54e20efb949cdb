"""Functionary 3.2: `>>>NAME`, a newline, the arguments; `>>>all` is what is said.

The prompt ends with `>>>`, so a text begins with a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolparse.driver.run import Run
from toolparse.grammars.channels import json_body
from toolparse.grammars.grammar import NEED_MORE, WAIT, Grammar, Written

_HEADER = re.compile(rb"(?:>>>)?([A-Za-z_][A-Za-z0-9_.-]{0,127})\n")
_START = re.compile(rb"(?:>>>)?(?:[A-Za-z_][A-Za-z0-9_.-]{0,127})?\Z")
SPOKEN = b"all"


class Functionary(Grammar):
    openers = (b">>>",)
    uniform = False

    def write(self, calls: Sequence[Written]) -> str:
        return "".join(f">>>{name}\n{self.spell(arguments)}" for name, arguments in calls)

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        found = _HEADER.match(data, at, n)
        if found is None:
            return None if n - at < 140 and _START.match(bytes(data[at:n])) else False
        if found.group(1) == SPOKEN or found.end() < n:
            return found.group(1) == SPOKEN or data[found.end()] == 0x7B
        return None

    def find(self, run: Run, pos: int, n: int, final: bool) -> tuple[int, int]:
        if pos == 0 and not run.data.startswith(b">>>", 0, n):
            begins = self.begins(run.data, 0, n)
            if begins:
                return 0, self.first_opener
            if begins is None and not final:
                return WAIT, -1
        return super().find(run, pos, n, final)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        begins = self.begins(data, at, n)
        found = _HEADER.match(data, at, n)
        if begins is None and not final:
            return NEED_MORE
        if not found or begins is False:
            return at + len(self.openers[0])
        if found.group(1) == SPOKEN:
            run.markup.append(found.span())
            return found.end()
        end = self.next_header(data, found.end(), n, final)
        if end == NEED_MORE:
            return NEED_MORE
        name = found.group(1).decode()
        json_body(run, (at, end), found.end(), end, name, found.span(1), end == n)
        return end

    def next_header(self, data: bytes | bytearray, pos: int, n: int, final: bool) -> int:
        """The next header, `n` without one, or NEED_MORE."""
        while True:
            pos = data.find(self.openers[0], pos, n)
            if pos < 0:
                return n if final else NEED_MORE
            begins = self.begins(data, pos, n)
            if begins:
                return pos
            if begins is None and not final:
                return NEED_MORE
            pos += 1

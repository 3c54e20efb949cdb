"""Calls as a list of Python calls with literals: `[f(a=1), g()]`, bare or between tags.

1. A bare list is an attempt at the start of the text; elsewhere only where all of it reads
   as calls, else it is content.
2. Nothing is evaluated. The block ends at the list's own bracket; after a fault at the close
   tag, or (bare) at the last bracket of the line.
"""

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
    Written,
    skip_space,
)
from toolparse.scan.literals import Bad, CallText, Cut, Reader, read_call
from toolparse.scan.pairs import begun

_CALL = re.compile(rb"[A-Za-z0-9_.-]{0,256}")
_LIST = re.compile(rb"\[\s{0,64}[A-Za-z_][A-Za-z0-9_.-]{0,255}\s{0,64}\(")

_NEXT_LIST = re.compile(rb"\n(?=\[[A-Za-z_][A-Za-z0-9_.-]{0,255}\()")


def literal(value: Any) -> str:
    """A value as a Python literal, strings in double quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


class Pythonic(Grammar):
    """open, close: the tags around the list, empty where it is bare; lines: no brackets, one
    call a line."""

    def __init__(
        self,
        open_tag: bytes = b"",
        close_tag: bytes = b"",
        *,
        markup: tuple[bytes, ...] = (),
        lines: bool = False,
    ) -> None:
        self.open = open_tag
        self.close = close_tag
        self.extra = markup
        self.lines = lines
        self.openers = ((open_tag,) if open_tag else (b"[",)) + markup
        super().__init__()

    def write(self, calls: Sequence[Written]) -> str:
        written = [f"{name}({self.spell(arguments)})" for name, arguments in calls]
        body = "\n".join(written) if self.lines else f"[{', '.join(written)}]"
        return f"{self.open.decode()}{body}{self.close.decode()}"

    def spell(self, arguments: Mapping[str, Any]) -> str:
        return ", ".join(f"{key}={literal(value)}" for key, value in arguments.items())

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        for tag in self.extra:
            if data.startswith(tag, at, n):
                run.markup.append((at, at + len(tag)))
                run.begins = at + len(tag)
                return at + len(tag)
        if self.open:
            return self.calls(run, at, skip_space(data, at + len(self.open), n), n, final, True)
        if not _LIST.match(data, at, n):
            return self.no_list(run, at, n, final)
        return self.calls(run, at, at, n, final, run.at_start(at))

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        if not self.open or not data.startswith(self.open, at, n):
            return False
        pos = skip_space(data, at + len(self.open), n)
        if pos >= n:
            return None
        if not self.lines:
            return data[pos] == 0x5B
        found = _CALL.match(data, pos, n)
        return (
            None
            if found and found.end() == n
            else found is not None and found.end() > pos and data[found.end()] == 0x28
        )

    def no_list(self, run: Run, at: int, n: int, final: bool) -> int:
        """A bracket that does not begin a list of calls, as far as it can be seen."""
        if (
            final
            or n - at > 400
            or not re.fullmatch(rb"\[\s*(?:[A-Za-z_][A-Za-z0-9_.-]*\s*)?", run.data[at:n])
        ):
            return at + 1
        return NEED_MORE

    def calls(self, run: Run, at: int, pos: int, n: int, final: bool, sure: bool) -> int:
        """The calls of the block at `at`, whose list begins at `pos`."""
        data = run.data
        if pos >= n and not final:
            return NEED_MORE
        if self.close and data.startswith(self.close, pos, n):
            end = pos + len(self.close)
            run.add((at, end), fault=Fault("empty_body", pos), arguments=None)
            return end
        reader = Reader(data, n)
        found: list[CallText] = []
        try:
            end = self.read(reader, pos, found)
            if self.close:
                after = reader.space(end)
                if not data.startswith(self.close, after, n):
                    if begun(self.close, data, after, n):
                        raise Cut
                    raise Bad(after, "extra_data")
                end = after + len(self.close)
        except Cut:
            if not final:
                run.wait = self.close or b"]"
                return NEED_MORE
            if not sure:
                return n
            name = found[0].name if found else None
            run.add(
                (at, n),
                name=name,
                name_span=found[0].name_span if found else None,
                fault=Fault("unclosed", n),
                arguments=None,
            )
            return n
        except Bad as bad:
            return self.bad(run, at, pos, n, final, sure, found, bad)
        if not sure and any(call.fault for call in found):
            return end
        for i, call in enumerate(found):
            if i:
                run.markup.append((found[i - 1].end, call.start))
            block = (at if i == 0 else call.start, end if i == len(found) - 1 else call.end)
            fault = Fault(*call.fault) if call.fault else None
            run.add(
                block,
                name=call.name,
                name_span=call.name_span,
                args_span=call.args_span,
                arguments=call.arguments if fault is None else None,
                values=call.values,
                fault=fault,
            )
        return end

    def read(self, reader: Reader, pos: int, found: list[CallText]) -> int:
        """All calls of the list; gives the offset after it."""
        data = reader.data
        bracket = data[pos : pos + 1] == b"["
        if not bracket and not self.lines:
            if pos >= reader.n:
                raise Cut
            raise Bad(pos, "malformed_tag")
        pos = reader.space(pos + 1 if bracket else pos)
        while True:
            if bracket and data[pos] == 0x5D:
                return pos + 1
            call = CallText()
            found.append(call)
            read_call(reader, pos, call)
            if not bracket:
                after = skip_space(data, call.end, reader.n)
                if after >= reader.n:
                    raise Cut
                if data[after] == 0x3C:
                    return call.end
                pos = after
                continue
            pos = reader.space(call.end)
            if data[pos] == 0x2C:
                pos = reader.space(pos + 1)
            elif data[pos] != 0x5D:
                raise Bad(pos, "malformed_tag")

    def bad(
        self,
        run: Run,
        at: int,
        pos: int,
        n: int,
        final: bool,
        sure: bool,
        found: list[CallText],
        bad: Bad,
    ) -> int:
        """The list does not read as calls."""
        data = run.data
        if not sure:
            return max(bad.offset, at + 1)
        if self.close:
            if not found or found[0].name is None:
                after = self.mention(run, pos, n, final, (self.close,))
                if after != 0:
                    return after
            stop, which = self.ahead(run, pos, bad.offset, n, final, (self.close,))
            if stop == WAIT:
                run.wait = self.close
                return NEED_MORE
            end = n if stop < 0 else stop + (len(self.close) if which == 0 else 0)
        else:
            line = data.find(b"\n", bad.offset, n)
            if line < 0 and not final:
                run.wait = b"\n"
                return NEED_MORE
            limit = n if line < 0 else line
            last = data.rfind(b"]", bad.offset, limit)
            end = last + 1 if last >= 0 else limit
            again = _NEXT_LIST.search(data, pos, end)
            end = again.start() + 1 if again else end
        call = found[-1] if found else CallText()
        fault = Fault(bad.kind, bad.offset)

        def repair() -> Repaired | None:
            again: list[CallText] = []
            repairs: list[str] = []
            try:
                self.read(Reader(data, n, repairs), pos, again)
            except (Cut, Bad):
                return None
            if len(again) != 1 or again[0].fault or not again[0].name:
                return None
            return Repaired(again[0].name, again[0].arguments, tuple(dict.fromkeys(repairs)))

        run.add(
            (at, end),
            name=call.name,
            name_span=call.name_span,
            fault=fault,
            repair=repair,
            arguments=None,
        )
        return end

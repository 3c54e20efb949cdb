"""Section, header, JSON: `open NAME sep {...} close` inside a section (DeepSeek, Kimi, ...).

1. The arguments are one JSON value, opaque to the tags.
2. Calls are given as they close; the section's own tags are markup and belong to no call.
3. A call outside of a section is `missing_open_tag`, or has its own fault; without a name it is
   content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toolparse.driver.run import Run
from toolparse.driver.tools import ToolSet
from toolparse.fast.section import SectionTags, section_json
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
from toolparse.grammars.tagged_json import json_fault
from toolparse.repair import json_text
from toolparse.result.model import Parsed, Source
from toolparse.scan.json_value import json_value
from toolparse.scan.pairs import begun

NAME_LIMIT = 256
TRUNCATED = 1
_KIMI_ID = re.compile(r"(?:functions\.)?(.+):[0-9]+\Z", re.DOTALL)


def plain_name(header: str) -> tuple[str | None, str | None]:
    """(name, native id) of a header that is the name."""
    return header.strip() or None, None


def kimi_name(header: str) -> tuple[str | None, str | None]:
    """(name, native id) of `functions.NAME:INDEX`."""
    header = header.strip()
    found = _KIMI_ID.match(header)
    return (found.group(1), header) if found else (None, header)


class _About(NamedTuple):
    """What is known of a call before its arguments."""

    start: int
    head: int
    name: str | None
    name_span: Span | None
    id: str | None
    outer: Fault | None

    def add(self, run: Run, end: int, **more: Any) -> None:
        """Adds the call, which ends at `end`."""
        block = (self.start, end)
        run.add(block, name=self.name, name_span=self.name_span, id=self.id, **more)


class SectionJson(Grammar):
    """section_open: its spellings, the canonical one first; none where calls stand alone.

    call_close: the tags after the arguments, white space between them; empty where a
    call ends with its JSON.
    """

    def __init__(
        self,
        section_open: tuple[bytes, ...],
        section_close: bytes,
        call_open: bytes,
        name_end: bytes,
        call_close: tuple[bytes, ...],
        header: Callable[[str], tuple[str | None, str | None]] = plain_name,
    ) -> None:
        self.section_open = section_open
        self.section_close = section_close
        self.call_open = call_open
        self.name_end = name_end
        self.call_close = call_close
        self.header = header
        # A fenced block has its close tags on lines of their own.
        self.fenced = len(call_close) > 1 and call_close[0] == b"```"
        self.openers = (*section_open, call_open)
        super().__init__()
        self.tags: SectionTags | None = None

    def framed(
        self,
        think: tuple[tuple[bytes, bytes], ...],
        texts: tuple[bytes, ...] = (),
        stops: tuple[bytes, ...] = (),
    ) -> None:
        super().framed(think, texts, stops)
        if self.section_open and len(think) == 1 and not texts and type(self) is SectionJson:
            self.tags = SectionTags(
                self.section_open,
                self.section_close,
                self.call_open,
                self.name_end,
                self.call_close,
                think[0],
                self.stops,
            )

    def fast(self, source: Source, tools: ToolSet | None, thinking: bool) -> Parsed | None:
        if self.tags is None:
            return None
        return section_json(source, self.tags, self, tools, thinking)

    def write(self, calls: Sequence[Written]) -> str:
        tail = (b"\n" if self.fenced else b"") + b"".join(self.call_close)
        written = [
            f"{self.call_open.decode()}{self.head(name, i)}{self.name_end.decode()}"
            f"{self.spell(arguments)}{tail.decode()}"
            for i, (name, arguments) in enumerate(calls)
        ]
        first = self.section_open[0].decode() if self.section_open else ""
        return first + ("\n" if self.fenced else "").join(written) + self.section_close.decode()

    def head(self, name: str, index: int) -> str:
        """The header of the call with this name and position."""
        return f"functions.{name}:{index}" if self.header is kimi_name else name

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        if not self.section_open:
            return self.orphan(run, at, n, final, None)
        opened = next((t for t in self.section_open if data.startswith(t, at, n)), None)
        if opened is None:
            return self.orphan(run, at, n, final, Fault("missing_open_tag", at))
        run.inside, run.section, run.section_calls = True, at, 0
        after = self.within(run, at + len(opened), n, final)
        if after < 0:
            run.inside = False
            return after
        return after

    def within(self, run: Run, pos: int, n: int, final: bool) -> int:
        data = run.data
        at = skip_space(data, pos, n)
        while any(data.startswith(t, at, n) for t in self.section_open):
            opened = next(t for t in self.section_open if data.startswith(t, at, n))
            at = skip_space(data, at + len(opened), n)
        first = run.section_calls == 0
        if data.startswith(self.section_close, at, n):
            end = at + len(self.section_close)
            run.inside = False
            if first:
                run.add((run.section, end), fault=Fault("empty_body", at), arguments=None)
            else:
                run.markup.append((pos, end))
            return end
        if data.startswith(self.call_open, at, n):
            after = self.call(run, at, at, n, final)
            if after >= 0:
                run.markup.append((run.section if first else pos, at))
                run.section_calls = 1
            return after
        rest = bytes(data[at : at + 64][: n - at])
        tags = (self.section_close, self.call_open, *self.section_open)
        if not final and any(tag.startswith(rest) for tag in tags):
            return NEED_MORE
        if not first:
            run.inside = False
            run.markup.append((pos, at))
            return at
        found, which = self.ahead(run, at, at, n, final, (self.section_close,))
        if found == WAIT:
            run.wait = self.section_close
            return NEED_MORE
        run.inside = False
        if found >= 0 and which < 0:
            # A tag that is talked about, before the next call.
            return found
        if found < 0:
            run.add((run.section, n), fault=Fault("unclosed", n), arguments=None)
            return n
        end = found + len(self.section_close)
        fault = Fault("malformed_tag", at, "the open tag of a call is wanted")
        run.add((run.section, end), fault=fault, arguments=None)
        return end

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        opened = next((t for t in self.section_open if data.startswith(t, at, n)), None)
        if opened is not None:
            pos = skip_space(data, at + len(opened), n)
            if n - pos < len(self.call_open) and self.call_open.startswith(bytes(data[pos:n])):
                return None
            return data.startswith(self.call_open, pos, n)
        head = at + len(self.call_open)
        limit = min(n, head + NAME_LIMIT + len(self.name_end))
        sep = data.find(self.name_end, head, limit)
        if sep < 0:
            return None if limit == n and b"<" not in data[head:n] else False
        if b"<" in data[head:sep]:
            return False
        body = skip_space(data, sep + len(self.name_end), n)
        return data[body] == 0x7B if body < n else None

    def orphan(self, run: Run, at: int, n: int, final: bool, outer: Fault | None) -> int:
        """A call outside of a section; `outer` where the format has sections."""
        attempts, errors = len(run.attempts), len(run.errors)
        after = self.call(run, at, at, n, final, outer)
        if after >= 0 and run.attempts[attempts].name is None and not run.in_think:
            # Not even a name: a tag that is talked about.
            del run.attempts[attempts:], run.errors[errors:]
        return after

    def closed(self, data: bytes | bytearray, pos: int, n: int) -> tuple[int, bool]:
        """(offset after the close tags or -1, whether the text may still become them)."""
        for tag in self.call_close:
            pos = skip_space(data, pos, n)
            if not data.startswith(tag, pos, n):
                return -1, begun(tag, data, pos, n)
            pos += len(tag)
        return pos, False

    def call(
        self, run: Run, start: int, at: int, n: int, final: bool, outer: Fault | None = None
    ) -> int:
        """One call at its open tag; `outer` is what is wrong with its surroundings."""
        data = run.data
        head = at + len(self.call_open)
        limit = min(n, head + NAME_LIMIT + len(self.name_end))
        sep = data.find(self.name_end, head, limit)
        if sep < 0 or any(data.find(tag, head, sep) >= 0 for tag in self.openers):
            return self.no_header(run, start, head, n, final, limit)
        name, native = self.header(data[head:sep].decode("utf-8", "replace"))
        if name and "<" in name:
            return self.no_header(run, start, head, n, final, limit)
        about = _About(start, head, name, self.name_at(run, name, head, sep), native, outer)
        pos = skip_space(data, sep + len(self.name_end), n)
        empty, maybe = self.closed(data, pos, n)
        if (maybe or pos >= n) and not final:
            return NEED_MORE
        if empty >= 0 and self.call_close:
            fault = Fault("args_not_object", pos)
            repaired = Repaired(name, {}, ("empty_arguments",)) if name else None
            about.add(run, empty, fault=fault, repair=lambda: repaired, arguments=None)
            return empty
        code, offset, duplicate, _ = json_value(data, pos, n)
        if code == TRUNCATED:
            if not final:
                run.wait = self.call_close[-1] if self.call_close else b"}"
                return NEED_MORE
            run.inside = False
            about.add(run, n, fault=Fault("unclosed", n), arguments=None)
            return n
        if code:
            return self.broken(run, about, offset, n, final, json_fault(code, offset), pos)
        return self.read_whole(run, about, pos, offset, duplicate, n, final)

    def no_header(self, run: Run, start: int, head: int, n: int, final: bool, limit: int) -> int:
        """The tag that ends the name is not near."""
        if limit == n and not final:
            return NEED_MORE
        about = _About(start, head, None, None, None, None)
        if limit == n and b"<" not in run.data[head:n]:
            run.inside = False
            about.add(run, n, fault=Fault("unclosed", n), arguments=None)
            return n
        fault = Fault("malformed_tag", head, "the name is not closed")
        return self.broken(run, about, head, n, final, fault)

    def read_whole(
        self, run: Run, about: _About, pos: int, offset: int, duplicate: int, n: int, final: bool
    ) -> int:
        """Whole arguments data[pos:offset]; looks for the close tags."""
        data = run.data
        end, maybe = self.closed(data, offset, n)
        if end < 0 and maybe:
            if not final:
                return NEED_MORE
            run.inside = False
            repair = self.repairer(run, about.name, pos, offset, ("close_tag",))
            about.add(
                run,
                n,
                args_span=(pos, offset),
                fault=Fault("unclosed", n),
                repair=repair,
                arguments=None,
            )
            return n
        if end < 0:
            after = skip_space(data, offset, n)
            kind = "bad_json" if data[after] in b"]}" else "extra_data"
            detail = "a closing bracket too many" if kind == "bad_json" else None
            return self.broken(run, about, after, n, final, Fault(kind, after, detail), pos)
        made = ("open_tag",) if about.outer else ()
        about.add(
            run,
            end,
            args_span=(pos, offset),
            fault=self.judge(data, about, pos, duplicate),
            repair=self.repairer(run, about.name, pos, offset, made),
        )
        return end

    def judge(
        self, data: bytes | bytearray, about: _About, pos: int, duplicate: int
    ) -> Fault | None:
        """What is wrong with a call that is all there."""
        if about.outer is not None:
            return about.outer
        if not about.name:
            return Fault("missing_name", about.head)
        if duplicate >= 0:
            return Fault("duplicate_key", duplicate)
        return Fault("args_not_object", pos) if data[pos] != 0x7B else None

    def name_at(self, run: Run, name: str | None, head: int, sep: int) -> Span | None:
        """Where the name stands in the header."""
        if not name:
            return None
        raw = name.encode("utf-8", "replace")
        at = run.data.find(raw, head, sep)
        return (at, at + len(raw)) if at >= 0 else None

    def broken(
        self, run: Run, about: _About, offset: int, n: int, final: bool, fault: Fault, pos: int = -1
    ) -> int:
        """Takes a faulty call to its close tag, or to the next tag that ends it."""
        close = self.call_close[-1] if self.call_close else b""
        tags = tuple(t for t in (close, self.section_close) if t)
        start = pos if pos >= 0 else about.head
        found, which = self.ahead(run, start, offset, n, final, tags)
        if found == WAIT:
            run.wait = tags[0]
            return NEED_MORE
        end = n
        if found < 0:
            run.inside = False
        else:
            end = found + len(tags[which]) if close and which == 0 else found
        if found >= 0 and which < 0:
            # The next call is one of the section, unless a section opens there.
            run.inside = run.inside and run.data.startswith(self.call_open, found, n)
        repair = None
        if pos >= 0 and found >= 0:
            repair = self.repairer(run, about.name, pos, found, (), self.call_close[:-1])
        about.add(run, end, fault=fault, repair=repair, arguments=None)
        return end

    def repairer(
        self,
        run: Run,
        name: str | None,
        start: int,
        end: int,
        made: tuple[str, ...],
        trail: tuple[bytes, ...] = (),
    ) -> Callable[[], Repaired | None]:
        def repair() -> Repaired | None:
            body = bytes(run.data[start:end]).rstrip()
            for tag in reversed(trail):
                body = body.removesuffix(tag).rstrip()
            found = json_text.tolerant(body.decode("utf-8", "replace"))
            if found is None or not name:
                return None
            fixed = json_text.given_object(found[0])
            if fixed is None:
                return None
            return Repaired(name, fixed[0], tuple(dict.fromkeys(made + found[1] + fixed[1])))

        return repair

"""Section, header, JSON: `open NAME sep {...} close` inside a section (DeepSeek, Kimi, ...).

1. The arguments are one JSON value, opaque to the tags.
2. Calls are given as they close; the section's own tags are markup and belong to no call.
3. A call outside of a section is `missing_open_tag`, or has its own fault; without a name it is
   content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from toolparse import _repair
from toolparse._find import find_any
from toolparse._grammar import NEED_MORE, Fault, Grammar, Repaired, Span, Written, skip_space
from toolparse._run import Run
from toolparse._scan import json_value
from toolparse._tagged_json import json_fault

NAME_LIMIT = 256
_KIMI_ID = re.compile(r"(?:functions\.)?(.+):[0-9]+\Z", re.DOTALL)


def plain_name(header: str) -> tuple[str | None, str | None]:
    """(name, native id) of a header that is the name."""
    return header.strip() or None, None


def kimi_name(header: str) -> tuple[str | None, str | None]:
    """(name, native id) of `functions.NAME:INDEX`."""
    header = header.strip()
    found = _KIMI_ID.match(header)
    return (found.group(1), header) if found else (None, header)


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
            return self.call(run, at, at, n, final)
        opened = next((t for t in self.section_open if data.startswith(t, at, n)), None)
        if opened is None:
            return self.orphan(run, at, n, final)
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
        found = data.find(self.section_close, at, n)
        if found < 0 and not final:
            run.wait = self.section_close
            return NEED_MORE
        run.inside = False
        if found < 0:
            run.add((run.section, n), fault=Fault("unclosed", n), arguments=None)
            return n
        end = found + len(self.section_close)
        fault = Fault("malformed_tag", at, "the open tag of a call is wanted")
        run.add((run.section, end), fault=fault, arguments=None)
        return end

    def orphan(self, run: Run, at: int, n: int, final: bool) -> int:
        """A call outside of a section."""
        attempts, errors = len(run.attempts), len(run.errors)
        after = self.call(run, at, at, n, final, Fault("missing_open_tag", at))
        if after >= 0 and run.attempts[attempts].name is None and not run.in_think:
            # Not even a name: a tag that is talked about.
            del run.attempts[attempts:], run.errors[errors:]
        return after

    def closed(self, data: bytes | bytearray, pos: int, n: int) -> tuple[int, bool]:
        """(offset after the close tags or -1, whether the text may still become them)."""
        for tag in self.call_close:
            pos = skip_space(data, pos, n)
            if not data.startswith(tag, pos, n):
                return -1, tag.startswith(bytes(data[pos:n]))
            pos += len(tag)
        return pos, False

    def call(
        self, run: Run, start: int, at: int, n: int, final: bool, outer: Fault | None = None
    ) -> int:
        data = run.data
        head = at + len(self.call_open)
        limit = min(n, head + NAME_LIMIT + len(self.name_end))
        sep = data.find(self.name_end, head, limit)
        if sep < 0:
            if limit == n and not final:
                return NEED_MORE
            if limit == n and b"<" not in data[head:n]:
                run.add((start, n), fault=Fault("unclosed", n), arguments=None)
                run.inside = False
                return n
            fault = Fault("malformed_tag", head, "the name is not closed")
            return self.broken(run, start, head, n, final, fault, None, None, None)
        name, native = self.header(data[head:sep].decode("utf-8", "replace"))
        name_span = self.name_at(run, name, head, sep)
        pos = skip_space(data, sep + len(self.name_end), n)
        if pos >= n and not final:
            return NEED_MORE
        empty, maybe = self.closed(data, pos, n)
        if maybe and not final:
            return NEED_MORE
        if empty >= 0 and self.call_close:
            fault = Fault("args_not_object", pos)
            run.add(
                (start, empty),
                name=name,
                name_span=name_span,
                id=native,
                fault=fault,
                repair=lambda: Repaired(name, {}, ("empty_arguments",)) if name else None,
                arguments=None,
            )
            return empty
        code, offset, duplicate, _ = json_value(data, pos, n)
        if code == 1:
            if not final:
                run.wait = self.call_close[-1] if self.call_close else b"}"
                return NEED_MORE
            run.add(
                (start, n),
                name=name,
                name_span=name_span,
                id=native,
                fault=Fault("unclosed", n),
                arguments=None,
            )
            run.inside = False
            return n
        if code:
            fault = json_fault(code, offset)
            return self.broken(run, start, offset, n, final, fault, name, name_span, native, pos)
        end, maybe = self.closed(data, offset, n)
        if end < 0 and maybe:
            if not final:
                return NEED_MORE
            run.add(
                (start, n),
                name=name,
                name_span=name_span,
                id=native,
                args_span=(pos, offset),
                fault=Fault("unclosed", n),
                repair=self.repairer(run, name, pos, offset, ("close_tag",)),
                arguments=None,
            )
            run.inside = False
            return n
        if end < 0:
            after = skip_space(data, offset, n)
            kind = "bad_json" if data[after] in b"]}" else "extra_data"
            detail = "a closing bracket too many" if kind == "bad_json" else None
            fault = Fault(kind, after, detail)
            return self.broken(run, start, after, n, final, fault, name, name_span, native, pos)
        judged = self.judge(data, name, pos, duplicate, outer, head)
        run.add(
            (start, end),
            name=name,
            name_span=name_span,
            args_span=(pos, offset),
            id=native,
            fault=judged,
            repair=self.repairer(run, name, pos, offset, ("open_tag",) if outer else ()),
        )
        return end

    def judge(
        self,
        data: bytes | bytearray,
        name: str | None,
        pos: int,
        duplicate: int,
        outer: Fault | None,
        head: int,
    ) -> Fault | None:
        if outer is not None:
            return outer
        if not name:
            return Fault("missing_name", head)
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
        self,
        run: Run,
        start: int,
        offset: int,
        n: int,
        final: bool,
        fault: Fault,
        name: str | None,
        name_span: Span | None,
        native: str | None,
        pos: int = -1,
    ) -> int:
        """Takes a faulty call to its close tag, or to the next tag that ends it."""
        data = run.data
        close = self.call_close[-1] if self.call_close else b""
        tags = tuple(t for t in (close, self.section_close, self.call_open) if t)
        found, which = find_any(data, offset, n, tags)
        if found < 0 and not final:
            run.wait = tags[0]
            return NEED_MORE
        if found < 0:
            end = n
            run.inside = False
        else:
            end = found + len(tags[which]) if close and which == 0 else found
        body_end = n if found < 0 else found
        repair = None
        if pos >= 0 and found >= 0:
            repair = self.repairer(run, name, pos, body_end, (), self.call_close[:-1])
        run.add(
            (start, end),
            name=name,
            name_span=name_span,
            id=native,
            fault=fault,
            repair=repair,
            arguments=None,
        )
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
            found = _repair.tolerant(body.decode("utf-8", "replace"))
            if found is None or not name:
                return None
            fixed = _repair.given_object(found[0])
            if fixed is None:
                return None
            return Repaired(name, fixed[0], tuple(dict.fromkeys(made + found[1] + fixed[1])))

        return repair


def decoded_name(data: bytes | bytearray, start: int, end: int) -> str:
    """A JSON string of the data."""
    text: str = json.loads(data[start:end])
    return text

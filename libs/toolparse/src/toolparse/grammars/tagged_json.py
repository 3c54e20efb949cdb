"""Tagged JSON: one JSON object between an open and a close tag (Qwen 2.5, Hermes, ...).

Where a block ends:
1. The JSON value is opaque: a close tag inside its strings is text.
2. After a whole value the close tag is wanted; the block ends there, or at the next
   open tag, or right after the value, whichever is found.
3. After a fault in the JSON the block ends at the first close tag behind the fault.
4. Where the text ends inside the value, the call is `unclosed` (truncation), unless the
   text ends with the close tag: then a string was never closed (syntax).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from toolparse.driver.run import Run
from toolparse.driver.tools import ToolSet
from toolparse.fast.tagged import Tags, tagged_json
from toolparse.grammars.grammar import (
    NEED_MORE,
    WAIT,
    Fault,
    Grammar,
    Repaired,
    Written,
    skip_space,
)
from toolparse.repair import json_text
from toolparse.result.model import Parsed, Source
from toolparse.scan.find import find_any
from toolparse.scan.json_value import json_value
from toolparse.scan.pairs import begun

OK, TRUNCATED, SYNTAX, CONTROL, SURROGATE, DEPTH, NUMBER = range(7)
_SPACE = b" \t\r\n"

_JSON_DETAILS = {
    SYNTAX: "unexpected character",
    CONTROL: "a control character in a string must be escaped",
    SURROGATE: "half of a surrogate pair",
}


def json_fault(code: int, offset: int) -> Fault:
    """The fault for a code of the scanner."""
    if code == DEPTH:
        return Fault("too_deep", offset)
    if code == NUMBER:
        return Fault("too_long", offset)
    return Fault("bad_json", offset, _JSON_DETAILS.get(code, "the text ends"))


class TaggedJson(Grammar):
    """open + object + close. `names` and `arguments` are the keys, the canonical one first."""

    def __init__(
        self,
        open_tag: bytes,
        close_tag: bytes,
        names: tuple[bytes, ...] = (b"name",),
        arguments: tuple[bytes, ...] = (b"arguments", b"parameters"),
        around: tuple[str, str] = ("\n", "\n"),
    ) -> None:
        self.around = around
        self.open = open_tag
        self.close = close_tag
        self.openers = (open_tag,)
        self.names = tuple(b'"' + name + b'"' for name in names)
        self.arguments = tuple(b'"' + name + b'"' for name in arguments)
        super().__init__()
        self.tags: Tags | None = None

    def framed(
        self,
        think: tuple[tuple[bytes, bytes], ...],
        texts: tuple[bytes, ...] = (),
        stops: tuple[bytes, ...] = (),
    ) -> None:
        super().framed(think, texts, stops)
        plain = type(self) is TaggedJson and self.close and self.open[:1] == b"<"
        if plain and len(think) == 1 and not texts:
            keys = (self.names, self.arguments)
            self.tags = Tags(self.open, self.close, *keys, think[0], self.stops)

    def fast(self, source: Source, tools: ToolSet | None, thinking: bool) -> Parsed | None:
        if self.tags is None:
            return None
        return tagged_json(source, self.tags, self, tools, thinking)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        start = pos = at + len(self.open)
        pos = skip_space(data, pos, n)
        if pos >= n and not final:
            return NEED_MORE
        if self.close and data.startswith(self.close, pos, n):
            end = pos + len(self.close)
            run.add((at, end), fault=Fault("empty_body", pos), arguments=None)
            return end
        if data[pos : pos + 1] not in (b"{", b"[", b""):
            after = self.mention(run, pos, n, final, (self.close,) if self.close else ())
            if after != 0:
                return after
        code, offset, duplicate, members = json_value(data, pos, n)
        if code == TRUNCATED:
            if not final:
                run.wait = self.close or b"}"
                return NEED_MORE
            return self.truncated(run, at, pos, n, members)
        if code != OK:
            closes = (self.close,) if self.close else ()
            found, which = self.ahead(run, start, offset, n, final, closes)
            if found == WAIT:
                run.wait = self.close or self.open
                return NEED_MORE
            end = n if found < 0 else found + (len(self.close) if which == 0 else 0)
            fault = json_fault(code, offset)
            self.bad(run, (at, end), (start, n if found < 0 else found), fault, members)
            return end
        after = offset
        while self.close and after < n and data[after] in _SPACE:
            after += 1
        if data.startswith(self.close, after, n):
            end = after + len(self.close)
            self.whole(run, (at, end), pos, offset, duplicate, members)
            return end
        return self.not_closed(run, at, pos, offset, after, n, final, members)

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        pos = skip_space(data, at + len(self.open), n)
        inner = skip_space(data, pos + 1, n)
        if data[pos : pos + 1] not in (b"", b"{"):
            return False
        return data[inner] in b'"}' if inner < n else None

    def write(self, calls: Sequence[Written]) -> str:
        key, value = self.names[0].decode(), self.arguments[0].decode()
        return ("\n" if self.around[1] else "").join(
            f"{self.open.decode()}{self.around[0]}{{{key}: {json.dumps(name, ensure_ascii=False)}, "
            f"{value}: {self.spell(arguments)}}}{self.around[1]}{self.close.decode()}"
            for name, arguments in calls
        )

    def truncated(
        self, run: Run, at: int, pos: int, n: int, members: list[tuple[int, int, int, int]]
    ) -> int:
        """The text ended inside the value."""
        end = n
        while end > pos and run.data[end - 1] in _SPACE:
            end -= 1
        if self.close and run.data.endswith(self.close, pos, end):
            found = end - len(self.close)
            fault = Fault("bad_json", found, "a string or bracket is never closed")
            self.bad(run, (at, end), (pos, found), fault, members)
            return end
        name, name_span, args_span = self.parts(run, members)
        run.add((at, n), name=name, name_span=name_span, fault=Fault("unclosed", n), arguments=None)
        return n

    def not_closed(
        self,
        run: Run,
        at: int,
        pos: int,
        offset: int,
        after: int,
        n: int,
        final: bool,
        members: list[tuple[int, int, int, int]],
    ) -> int:
        """A whole value, and then no close tag."""
        data = run.data
        found, which = find_any(data, after, n, (self.close, self.open))
        if found < 0 and not final:
            run.wait = self.close
            return NEED_MORE
        repair: Callable[[], Repaired | None] = self.repairer(run, pos, offset, ("close_tag",))
        if found >= 0 and which == 0:
            end = found + len(self.close)
            if data[after] in b"]}":
                fault = Fault("bad_json", after, "a closing bracket too many")
            else:
                fault = Fault("extra_data", after)
            repair = self.repairer(run, pos, offset, ("extra_data",))
        elif found >= 0:
            end, fault = found, Fault("malformed_tag", after, "the close tag is missing")
        elif after >= n or begun(self.close, data, after, n):
            end, fault = n, Fault("unclosed", n)
        else:
            end, fault = offset, Fault("malformed_tag", after, "the close tag is missing")
        name, name_span, args_span = self.parts(run, members)
        run.add(
            (at, end),
            name=name,
            name_span=name_span,
            args_span=args_span,
            fault=fault,
            repair=repair,
            arguments=None,
        )
        return end

    def parts(
        self, run: Run, members: list[tuple[int, int, int, int]]
    ) -> tuple[str | None, tuple[int, int] | None, tuple[int, int] | None]:
        """Name and argument spans among the members that were read whole."""
        name = name_span = args_span = None
        data = run.data
        for key_start, key_end, start, end in members:
            if end < 0:
                continue
            key = bytes(data[key_start:key_end])
            if key in self.names and name is None and data[start] == 0x22:
                name = json.loads(data[start:end])
                name_span = (start + 1, end - 1)
            elif key in self.arguments and args_span is None:
                args_span = (start, end)
        return name, name_span, args_span

    def whole(
        self,
        run: Run,
        block: tuple[int, int],
        pos: int,
        offset: int,
        duplicate: int,
        members: list[tuple[int, int, int, int]],
    ) -> None:
        """A value and its close tag."""
        data = run.data
        if data[pos] != 0x7B:
            run.add(block, fault=Fault("not_object", pos), arguments=None)
            return
        name, name_span, args_span = self.parts(run, members)
        fault = None
        given = sum(bytes(data[m[0] : m[1]]) in self.arguments for m in members)
        if duplicate >= 0:
            fault = Fault("duplicate_key", duplicate)
        elif name is None or not name:
            fault = Fault("missing_name", pos)
        elif given > 1:
            fault = Fault("ambiguous_arguments", pos)
        elif args_span is not None and data[args_span[0]] != 0x7B:
            fault = Fault("args_not_object", args_span[0])
        if fault is None and args_span is None:
            run.add(block, name=name, name_span=name_span, arguments={})
            return
        if fault is None:
            run.add(block, name=name, name_span=name_span, args_span=args_span)
            return
        keep = {} if fault.kind == "missing_name" and args_span else {"arguments": None}
        run.add(
            block,
            name=name,
            name_span=name_span,
            args_span=args_span,
            fault=fault,
            repair=self.repairer(run, pos, offset, ()),
            **keep,
        )

    def bad(
        self,
        run: Run,
        block: tuple[int, int],
        body: tuple[int, int],
        fault: Fault,
        members: list[tuple[int, int, int, int]],
    ) -> None:
        """A value with a fault."""
        name, name_span, args_span = self.parts(run, members)
        run.add(
            block,
            name=name,
            name_span=name_span,
            args_span=args_span,
            fault=fault,
            repair=self.repairer(run, *body, ()),
            arguments=None,
        )

    def repairer(
        self, run: Run, start: int, end: int, names: tuple[str, ...]
    ) -> Callable[[], Repaired | None]:
        """The repair of the object in data[start:end], `names` made already."""
        return lambda: json_text.call_object(
            bytes(run.data[start:end]), self.names, self.arguments, names
        )

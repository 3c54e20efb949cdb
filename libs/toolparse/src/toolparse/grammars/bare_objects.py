"""Llama 3: objects after a tag or at the start of the text, `;` between them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from toolparse.driver.run import Run
from toolparse.driver.tools import ToolSet
from toolparse.fast.bare import bare_objects
from toolparse.fast.tagged import Tags
from toolparse.grammars.call_object import Keys, objects
from toolparse.grammars.grammar import NEED_MORE, Fault, Written, skip_space
from toolparse.grammars.tagged_json import TaggedJson, json_fault
from toolparse.result.model import Parsed, Source
from toolparse.scan.json_value import json_value
from toolparse.scan.pairs import begun


class BareObjects(TaggedJson):
    """Objects after the tag, or at the start of the text; `;` between them."""

    uniform = False

    def __init__(self, tag: bytes, separator: bytes = b";") -> None:
        super().__init__(tag, b"\x00", (b"name",), (b"parameters", b"arguments"))
        self.separator = separator
        self.keys = Keys(("name",), ("parameters", "arguments"))

    def framed(
        self,
        think: tuple[tuple[bytes, bytes], ...],
        texts: tuple[bytes, ...] = (),
        stops: tuple[bytes, ...] = (),
    ) -> None:
        super().framed(think, texts, stops)
        if self.separator == b";" and len(think) == 1 and not texts:
            keys = (self.names, self.arguments)
            self.tags = Tags(self.open, b"", *keys, think[0], self.stops)

    def fast(self, source: Source, tools: ToolSet | None, thinking: bool) -> Parsed | None:
        if self.tags is None:
            return None
        return bare_objects(source, self.tags, self, tools, thinking)

    def write(self, calls: Sequence[Written]) -> str:
        written = [json.dumps(item, ensure_ascii=False) for item in objects(self.keys, calls)]
        if self.separator == self.open:
            return "".join(f"{self.open.decode()} {item}" for item in written)
        tag = self.open.decode() if len(written) > 1 else ""
        return tag + self.separator.decode().join(written)

    def find(self, run: Run, pos: int, n: int, final: bool) -> tuple[int, int]:
        at = skip_space(run.data, pos, n)
        if run.data[at : at + 1] == b"{" and run.at_start(at) and not run.attempts:
            return at, self.first_opener
        return super().find(run, pos, n, final)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        tagged = data.startswith(self.open, at, n)
        pos = skip_space(data, at + len(self.open) if tagged else at, n)
        if tagged and pos >= n:
            if not final:
                return NEED_MORE
            run.add((at, n), fault=Fault("unclosed", n), arguments=None)
            return n
        if tagged and data[pos] != 0x7B:
            run.add((at, pos), fault=Fault("not_object", pos), arguments=None)
            return pos
        return self.objects(run, at, pos, n, final, tagged)

    def follows(self, run: Run, pos: int, n: int, final: bool) -> int:
        """The start of the next object behind a separator, -2 where there is none, NEED_MORE."""
        data = run.data
        at = skip_space(data, pos, n)
        if at >= n and not final:
            return NEED_MORE
        if not data.startswith(self.separator, at, n):
            partial = not final and begun(self.separator, data, at, n)
            return NEED_MORE if partial else -2
        start = skip_space(data, at + len(self.separator), n)
        if start >= n and not final:
            return NEED_MORE
        return start if data[start : start + 1] == b"{" else -2

    def within(self, run: Run, pos: int, n: int, final: bool) -> int:
        """At a further object, whose separator was seen."""
        start = self.follows(run, pos, n, final)
        if start < 0:
            return start
        after = self.objects(run, start, start, n, final, True)
        if after >= 0:
            run.markup.append((pos, start))
        return after

    def objects(self, run: Run, at: int, pos: int, n: int, final: bool, tagged: bool) -> int:
        """One object; `at` is where its tag began."""
        data = run.data
        code, offset, duplicate, members = json_value(data, pos, n)
        if code == 1 and not final:
            run.wait = b"}"
            return NEED_MORE
        name, name_span, args_span = self.parts(run, members)
        if not tagged and name is None:
            # An answer that is JSON is no call.
            return n if code == 1 else max(offset, pos + 1)
        if at != pos:
            run.markup.append((at, pos))
        if code == 1:
            run.inside = False
            run.add(
                (pos, n), name=name, name_span=name_span, fault=Fault("unclosed", n), arguments=None
            )
            return n
        if code:
            found = data.find(self.open, offset, n)
            if found < 0 and not final:
                run.wait = self.open
                return NEED_MORE
            end = n if found < 0 else found
            run.inside = False
            run.add(
                (at, end),
                name=name,
                name_span=name_span,
                fault=json_fault(code, offset),
                repair=self.keys.repairer(run, pos, end, ()),
                arguments=None,
            )
            return end
        more = self.follows(run, offset, n, final)
        if more == NEED_MORE:
            return NEED_MORE
        run.inside = more >= 0
        if at != pos and run.inside:
            # A tag that opens several calls belongs to none of them.
            run.markup.append((at, pos))
            at = pos
        self.keys.add(run, (at, offset), pos, offset)
        return offset

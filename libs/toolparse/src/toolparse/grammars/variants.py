"""Formats that differ from their family in one point."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from toolparse.driver.run import Run
from toolparse.grammars.call_object import Keys
from toolparse.grammars.grammar import NEED_MORE, Fault, Grammar, Written, skip_space
from toolparse.grammars.json_list import TaggedArray
from toolparse.grammars.pythonic import Pythonic
from toolparse.grammars.tagged_json import json_fault
from toolparse.grammars.tagged_pairs import TaggedPairs
from toolparse.scan.json_value import json_value
from toolparse.scan.pairs import Scanned, begun

_CDATA = re.compile(r"\A<!\[CDATA\[(.*)\]\]>\Z", re.DOTALL)


def xml_text(text: str) -> str:
    """The text of an XML element: CDATA verbatim, else entities decoded."""
    found = _CDATA.match(text.strip())
    return found.group(1) if found else html.unescape(text)


class Namespaced(TaggedPairs):
    """Names as `NAMESPACE.NAME`: the tool is the whole name where it is declared, else its
    last part; without declarations a repeated name (`f.f`) is one name."""

    def name(self, run: Run, scanned: Scanned) -> str | None:
        name = super().name(run, scanned)
        if name is None:
            return None
        head, _, tail = name.rpartition(".")
        if run.tools is not None:
            return tail if name not in run.tools and tail in run.tools else name
        return tail if head == tail else name


class ObjectOrPairs(TaggedPairs):
    """A call is key/value tags, or one JSON object with name and arguments: between the tags
    of a call (K2 Horizon), or of the section (`in_section`, dots)."""

    keys = Keys()
    in_section = False

    def within(self, run: Run, pos: int, n: int, final: bool) -> int:
        at = skip_space(run.data, pos, n)
        if self.in_section and run.section_calls == 0 and run.data[at : at + 1] == b"{":
            end = self.object(run, run.section, at, n, final, self.shape.section_close)
            run.inside = run.inside and end < 0
            return end
        return super().within(run, pos, n, final)

    def call(self, run: Run, start: int, at: int, n: int, final: bool) -> int:
        pos = skip_space(run.data, at + len(self.shape.call_open), n)
        if pos >= n and not final:
            return NEED_MORE
        if self.in_section or run.data[pos : pos + 1] != b"{":
            return super().call(run, start, at, n, final)
        return self.object(run, start, pos, n, final, self.shape.call_close)

    def object(self, run: Run, start: int, pos: int, n: int, final: bool, close: bytes) -> int:
        """The call that the object at `pos` is, up to the tag `close`."""
        data = run.data
        code, offset, _, _ = json_value(data, pos, n)
        after = skip_space(data, offset, n) if code == 0 else offset
        if code == 1 or (code == 0 and begun(close, data, after, n)):
            if not final and not data.startswith(close, after, n):
                run.wait = close
                return NEED_MORE
            if code == 1 or not data.startswith(close, after, n):
                run.inside = False
                run.add((start, n), fault=Fault("unclosed", n), arguments=None)
                return n
        if code or not data.startswith(close, after, n):
            fault = json_fault(code, offset) if code else Fault("extra_data", after)
            return self.broken(run, start, after, n, final, fault, None)
        end = after + len(close)
        if close == self.shape.section_close:
            self.keys.add(run, (start, end), pos, offset)
            return end
        return self.settle(
            run, start, end, n, final,
            lambda block, fault: self.keys.add(run, block, pos, offset, fault),
        )  # fmt: skip


class ObjectSection(ObjectOrPairs):
    """`in_section`: the object stands between the tags of the section."""

    in_section = True


class ListOrCalls(Pythonic):
    """LFM2: Python calls, or JSON objects, between the same tags."""

    def __init__(self, open_tag: bytes, close_tag: bytes) -> None:
        super().__init__(open_tag, close_tag)
        self.array = TaggedArray(open_tag, close_tag, alone=True)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        pos = skip_space(data, at + len(self.open), n)
        inner = skip_space(data, pos + 1, n)
        if inner >= n and not final:
            return NEED_MORE
        if data[pos : pos + 1] == b"{" or data[inner : inner + 1] == b"{":
            return self.array.block(run, at, n, final)
        return super().block(run, at, n, final)


class Forgetful(Grammar):
    """Trinity: think tags are no reasoning; they are taken out, so a thought call runs."""

    def __init__(self, inner: Grammar, tags: tuple[bytes, bytes]) -> None:
        self.inner = inner
        self.tags = tags
        self.openers = (*inner.openers, *self.tags)
        super().__init__()

    def write(self, calls: Sequence[Written]) -> str:
        return self.inner.write(calls)

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        if any(data.startswith(tag, at, n) for tag in self.tags):
            return False
        return self.inner.begins(data, at, n)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        for tag in self.tags:
            if run.data.startswith(tag, at, n):
                run.markup.append((at, at + len(tag)))
                return at + len(tag)
        return self.inner.block(run, at, n, final)

    def within(self, run: Run, pos: int, n: int, final: bool) -> int:
        return self.inner.within(run, pos, n, final)

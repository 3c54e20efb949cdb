"""Tagged key/value: a call whose arguments are tags of their own (Qwen3-Coder, GLM, DSML, ...).

Where things end:
1. A value is raw text up to its own close tag. `</tool_call>` inside it is text, for that tag
   can only follow the close tag of the call.
2. The close tag of the call followed by the close tag of the section, inside a value, means
   that the value was never closed; so does an opening key tag at the start of a line.
3. A fault takes the block to the next close tag of the section (or of the call where there
   is no section), else to the end of the text.
4. With a section, what follows a call is read before the call is given, for the last call of
   a section ends with the section.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from toolparse.driver.run import Run
from toolparse.driver.tools import Misfit, ToolSet
from toolparse.fast.pairs import PairTags, tagged_pairs
from toolparse.grammars.grammar import NEED_MORE, WAIT, Fault, Repaired, Span, skip_space
from toolparse.grammars.pair_ends import PairEnds
from toolparse.grammars.pair_writer import PairWriter
from toolparse.grammars.tagged_json import json_fault
from toolparse.repair import tagged_values
from toolparse.result.model import Parsed, Source
from toolparse.scan.find import find_any
from toolparse.scan.json_value import json_value
from toolparse.scan.pairs import (
    MORE,
    NAME,
    OK,
    REPEATED,
    TAG,
    Scanned,
    Shape,
    begun,
    scan_call,
)

_DETAILS = {
    NAME: "the name is not closed",
    TAG: "a close tag or the next argument is wanted",
}


class TaggedPairs(PairWriter, PairEnds):
    """`single`: a section holds one call, which ends with it; else each call stands alone.

    `alone`: a call may be recognised where its section was not opened. `wire`: the attribute
    that says whether a value is a string. `json_body`: the arguments may stand as one JSON
    object. `fallback`: how a value without a type is read, "string" or "json".
    """

    def __init__(
        self,
        shape: Shape,
        *,
        single: bool = False,
        alone: bool = True,
        json_body: bool = False,
        fallback: str = "string",
        decode: Callable[[str], str] | None = None,
        wrapper_prefix: bytes = b"",
        line: str = "\n",
    ) -> None:
        self.line = line
        self.python_words = shape.call_open == b"<function="
        self.shape = shape
        self.single = single
        self.alone = alone and bool(shape.section_open)
        self.json_body = json_body
        self.fallback = fallback
        self.tags: PairTags | None = None
        self.decode = decode
        self.wrapper_prefix = wrapper_prefix
        if shape.section_open:
            self.openers = (shape.section_open,) + ((shape.call_open,) if self.alone else ())
        else:
            self.openers = (shape.call_open,)
        tags = (shape.section_open, shape.section_close, shape.call_open, shape.call_close)
        self.window = max(map(len, (*tags, shape.key_open)))
        self.outer_close = shape.section_close or shape.call_close
        super().__init__()
        plain = not (shape.attributes or json_body or decode or shape.cdata or shape.type_open)
        same_byte = all(opener[:1] == b"<" for opener in self.openers)
        self.has_fast_path = plain and same_byte and type(self) is TaggedPairs

    def framed(
        self,
        think: tuple[tuple[bytes, bytes], ...],
        texts: tuple[bytes, ...] = (),
        stops: tuple[bytes, ...] = (),
    ) -> None:
        super().framed(think, texts, stops)
        plain = self.has_fast_path and (not self.shape.section_open or self.alone)
        if plain and len(think) == 1 and not texts:
            self.tags = PairTags(self.shape, self.single, think[0], self.stops)

    def fast(self, source: Source, tools: ToolSet | None, thinking: bool) -> Parsed | None:
        if self.tags is None:
            return None
        return tagged_pairs(source, self.tags, self, tools, thinking)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        shape = self.shape
        if not shape.section_open:
            return self.bare(run, at, n, final)
        if not run.data.startswith(shape.section_open, at, n):
            return self.orphan(run, at, n, final)
        run.inside = True
        run.section = at
        run.section_calls = 0
        after = self.within(run, at + len(shape.section_open), n, final)
        if after < 0:
            run.inside = False
        return after

    def within(self, run: Run, pos: int, n: int, final: bool) -> int:
        """Inside a section: reads the next call, or the end of the section."""
        shape, data = self.shape, run.data
        at = skip_space(data, pos, n)
        first = run.section_calls == 0
        while first and data.startswith(shape.section_open, at, n):
            at = skip_space(data, at + len(shape.section_open), n)
        start = run.section if first else at
        if data.startswith(shape.section_close, at, n):
            end = at + len(shape.section_close)
            run.inside = False
            if first:
                run.add((start, end), fault=Fault("empty_body", at), arguments=None)
            else:
                run.markup.append((pos, end))
            return end
        if data.startswith(shape.call_open, at, n):
            after = self.call(run, start, at, n, final)
            if after >= 0 and not first:
                run.markup.append((pos, at))
            return after
        rest = bytes(data[at : at + self.window][: n - at])
        partial = shape.section_close.startswith(rest) or shape.call_open.startswith(rest)
        if partial and not final:
            return NEED_MORE
        run.inside = False
        if not first:
            if partial:
                return n
            return at
        if partial:
            run.add((start, n), fault=Fault("unclosed", n), arguments=None)
            return n
        after = self.mention(run, at, n, final, (self.outer_close,))
        if after != 0:
            return after
        return self.broken(
            run, start, at, n, final, Fault("malformed_tag", at, _DETAILS[TAG]), None
        )

    def scanned(self, run: Run, at: int, n: int, final: bool) -> Scanned:
        """The call at the open tag at `at`."""
        name = at + len(self.shape.call_open)
        return scan_call(self.shape, run.data, name, n, final, run.tools, run.quiet)

    def call(self, run: Run, start: int, at: int, n: int, final: bool) -> int:
        """One call of a section, at its open tag."""
        scanned = self.scanned(run, at, n, final)
        if scanned[0] == TAG and self.json_body and not scanned[4]:
            return self.json_call(run, start, scanned, n, final)
        if scanned[0] != OK:
            return self.faulty(run, start, at, scanned, n, final)
        end = scanned[1]
        return self.settle(
            run,
            start,
            end,
            n,
            final,
            lambda block, fault: self.finish(run, block, at, scanned, fault),
        )

    def settle(
        self,
        run: Run,
        start: int,
        end: int,
        n: int,
        final: bool,
        finish: Callable[[Span, Fault | None], None],
    ) -> int:
        """A whole call of a section that ends at `end`: looks at what follows."""
        shape, data = self.shape, run.data
        after = skip_space(data, end, n)
        if data.startswith(shape.section_close, after, n):
            run.inside = False
            end = after + len(shape.section_close)
            finish((start, end), None)
            return end
        rest = bytes(data[after : after + self.window][: n - after])
        partial = shape.section_close.startswith(rest) or shape.call_open.startswith(rest)
        if partial and not final and not rest.startswith(shape.call_open):
            return NEED_MORE
        run.section_calls += 1
        if rest.startswith(shape.call_open) or not self.single:
            run.inside = rest.startswith(shape.call_open)
            finish((start, end), None)
            return end
        run.inside = False
        if partial:
            finish((start, n), Fault("unclosed", n))
            return n
        fault = Fault("malformed_tag", after, "the close tag is missing")
        found, which = find_any(data, after, n, (shape.section_close, shape.section_open))
        if found < 0 and not final:
            run.inside, run.section_calls = True, run.section_calls - 1
            return NEED_MORE
        if found >= 0 and which == 0:
            fault = Fault("extra_data", after)
            end = found + len(shape.section_close)
        finish((start, end), fault)
        return end

    def bare(self, run: Run, at: int, n: int, final: bool) -> int:
        """A call of a format without sections."""
        scanned = self.scanned(run, at, n, final)
        if scanned[0] == TAG and self.json_body and not scanned[4]:
            return self.json_call(run, at, scanned, n, final)
        if scanned[0] != OK:
            if scanned[0] == NAME or b" " in run.data[max(scanned[2], 0) : max(scanned[3], 0)]:
                after = self.mention(run, at + 1, n, final, (self.outer_close,))
                if after != 0:
                    return after
            return self.faulty(run, at, at, scanned, n, final)
        self.finish(run, (at, scanned[1]), at, scanned, None)
        return scanned[1]

    def orphan(self, run: Run, at: int, n: int, final: bool) -> int:
        """A call whose section was not opened: an attempt if it is whole, else content."""
        shape, data = self.shape, run.data
        scanned = self.scanned(run, at, n, final)
        code, end = scanned[0], scanned[1]
        if code == MORE and not final:
            run.wait = shape.call_close
            return NEED_MORE
        if code != OK:
            return self.past_orphan(run, at, end, n, final)
        stop = self.wrapper_behind(data, end, n, final)
        if stop == NEED_MORE:
            return NEED_MORE
        end = stop
        start, fault, repair = at, Fault("missing_open_tag", at), "open_tag"
        wrapper = self.wrapper_before(data, at)
        if wrapper >= 0:
            start, repair = wrapper, "wrapper_spelling"
            fault = Fault("malformed_tag", wrapper, "the tag around the calls is misspelled")
        self.finish(run, (start, end), at, scanned, fault, (repair,))
        return end

    def json_call(self, run: Run, start: int, scanned: Scanned, n: int, final: bool) -> int:
        """A call whose arguments stand as one JSON object."""
        shape, data = self.shape, run.data
        pos = scanned[1]
        if data[pos] != 0x7B:
            return self.faulty(run, start, start, scanned, n, final)
        code, offset, duplicate, _ = json_value(data, pos, n)
        after = skip_space(data, offset, n) if code == 0 else offset
        if code == 1 or (code == 0 and begun(shape.call_close, data, after, n)):
            if not final:
                run.wait = shape.call_close
                return NEED_MORE
            return self.faulty(run, start, start, (MORE, n, *scanned[2:]), n, final)
        if code != 0 or not data.startswith(shape.call_close, after, n):
            fault = json_fault(code, offset) if code else Fault("extra_data", after)
            return self.broken(run, start, after, n, final, fault, scanned)
        end = after + len(shape.call_close)
        name = self.name(run, scanned)

        def finish(block: Span, fault: Fault | None) -> None:
            if duplicate >= 0:
                fault = Fault("duplicate_key", duplicate)
            run.add(
                block,
                name=name,
                name_span=scanned[2:4],
                args_span=(pos, offset),
                fault=fault,
            )

        if not shape.section_open:
            finish((start, end), None)
            return end
        return self.settle(run, start, end, n, final, finish)

    def faulty(self, run: Run, start: int, at: int, scanned: Scanned, n: int, final: bool) -> int:
        """A call that was not read whole."""
        code, offset = scanned[:2]
        if code == MORE:
            if not final:
                run.wait = self.shape.call_close
                return NEED_MORE
            run.inside = False
            name = self.name(run, scanned)
            run.add(
                (start, n),
                name=name,
                name_span=scanned[2:4] if name else None,
                fault=Fault("unclosed", n),
                arguments=None,
            )
            return n
        if code == REPEATED:
            fault = Fault("duplicate_key", offset)
        else:
            detail = _DETAILS.get(code, "the value is never closed")
            fault = Fault("malformed_tag", offset, detail)
        return self.broken(run, start, offset, n, final, fault, scanned)

    def broken(
        self,
        run: Run,
        start: int,
        offset: int,
        n: int,
        final: bool,
        fault: Fault,
        scanned: Scanned | None,
    ) -> int:
        """Takes a faulty block to the next outer close tag."""
        found, which = self.next_after(run, self.read_end(start, scanned), offset, n, final)
        if found == WAIT:
            run.wait = self.outer_close
            return NEED_MORE
        end = n if found < 0 else found + (len(self.outer_close) if which == 0 else 0)
        # The next call of the same section is read as one of it.
        opened = bool(self.shape.section_open) and run.inside
        run.inside = opened and which < 0 and run.data.startswith(self.shape.call_open, end, n)
        run.section_calls += run.inside
        name = self.name(run, scanned) if scanned else None
        run.add(
            (start, end),
            name=name,
            name_span=scanned[2:4] if scanned and name else None,
            fault=fault,
            repair=lambda: self.repaired(run, (start, end)) if found >= 0 else None,
            arguments=None,
        )
        return end

    def name(self, run: Run, scanned: Scanned) -> str | None:
        if scanned[2] < 0 or scanned[2] == scanned[3]:
            return None
        return run.data[scanned[2] : scanned[3]].decode("utf-8", "replace")

    def finish(
        self,
        run: Run,
        block: Span,
        at: int,
        scanned: Scanned,
        fault: Fault | None,
        made: tuple[str, ...] = (),
    ) -> None:
        """Adds a call whose tags are all there; gives the values their types."""
        data = run.data
        name = self.name(run, scanned)
        pairs = scanned[4]
        if name is None:
            kind = "missing_name" if pairs else "empty_body"
            run.add(block, fault=fault or Fault(kind, block[0]), arguments=None)
            return
        values: dict[str, Span] = {}
        converted: dict[str, Any] = {}
        tool = run.tools.tool(name) if run.tools is not None else None
        for pair in pairs:
            key = data[pair[0] : pair[1]].decode("utf-8", "replace").strip()
            if key in values:
                fault = fault or Fault("duplicate_key", pair[0], None, key)
            values[key] = (pair[4], pair[5])
            wire = self.wire_type(bytes(data[pair[2] : pair[3]]))
            if wire == "string" or (
                wire is None
                and self.decode is None
                and (tool is None or key in tool.verbatim or key not in tool.types)
                and self.fallback == "string"
            ):
                continue
            text = run.source.slice(pair[4], pair[5])
            if self.decode is not None:
                text = self.decode(text)
            try:
                converted[key] = self.typed(tool, key, text, wire)
            except Misfit as misfit:
                converted[key] = text
                fault = fault or Fault("bad_param_type", pair[4], str(misfit), key)
        args_span = (
            (pairs[0][0] - len(self.shape.key_open), self.args_end(data, pairs[-1], block[1]))
            if pairs
            else None
        )
        run.add(
            block,
            name=name,
            name_span=scanned[2:4],
            args_span=args_span,
            fault=fault,
            values=values,
            converted=converted,
            repair=lambda: self.repaired(run, block, made),
        )

    def args_end(self, data: bytes | bytearray, pair: tuple[int, ...], limit: int) -> int:
        """The end of the last argument's close tag."""
        return data.find(self.shape.value_close, pair[5], limit) + len(self.shape.value_close)

    def typed(self, tool: Any, key: str, text: str, wire: str | None) -> Any:
        if wire == "json":
            data = text.strip().encode("utf-8", "replace")
            code, end, duplicate, _ = json_value(data, 0, len(data))
            if code or end != len(data) or duplicate >= 0:
                raise Misfit(f"want JSON, found {text[:60]!r}")
            return json.loads(data)
        if tool is not None and key in tool.types:
            return tool.value(key, text)[0]
        if self.fallback == "json":
            data = text.strip().encode("utf-8", "replace")
            code, end, duplicate, _ = json_value(data, 0, len(data))
            if not code and end == len(data) and duplicate < 0:
                return json.loads(data)
        return text

    def wire_type(self, attributes: bytes) -> str | None:
        """What the attributes of a value say of its type."""
        if b'string="true"' in attributes:
            return "string"
        return "json" if b'string="false"' in attributes else None

    def repaired(self, run: Run, block: Span, made: tuple[str, ...] = ()) -> Repaired | None:
        return tagged_values.call(self, run, block, made)

"""MiniMax M3: every tag behind a prefix, the key is the tag, nested values are elements.

`P<tool_call>P<invoke name="N">P<k>textP</k>P<list>P<item>1P</item>P</list>P</invoke>P</tool_call>`
with P = `]<]minimax[>[`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolparse.driver.run import Run
from toolparse.driver.schema import item_schema, object_shape, types_of
from toolparse.driver.tools import Misfit, typed
from toolparse.grammars.grammar import NEED_MORE, WAIT, Fault, Grammar, Span, Written, skip_space
from toolparse.scan.find import find_any

P = b"]<]minimax[>["
SECTION_OPEN, SECTION_CLOSE = P + b"<tool_call>", P + b"</tool_call>"
INVOKE, INVOKE_CLOSE = P + b'<invoke name="', P + b"</invoke>"
MAX_DEPTH = 64
_TAG = re.compile(rb"\]<\]minimax\[>\[[ \t\r\n]{0,64}<([^<>/\n]{1,256})>")


class _Wrong(Exception):
    def __init__(self, offset: int, detail: str, kind: str = "malformed_tag") -> None:
        self.offset = offset
        self.detail = detail
        self.kind = kind


def element(key: str, value: Any) -> str:
    """A value as an element; lists and objects nest."""
    p = P.decode()
    if isinstance(value, dict):
        body = "".join(element(k, v) for k, v in value.items())
    elif isinstance(value, list):
        body = "".join(element("item", item) for item in value)
    else:
        body = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{p}<{key}>{body}{p}</{key}>"


class MinimaxM3(Grammar):
    openers = (SECTION_OPEN,)

    def write(self, calls: Sequence[Written]) -> str:
        p = P.decode()
        body = "".join(
            f'{p}<invoke name="{name}">{self.spell(arguments)}{p}</invoke>\n'
            for name, arguments in calls
        )
        return f"{p}<tool_call>\n{body}{p}</tool_call>"

    def spell(self, arguments: Mapping[str, Any]) -> str:
        return "".join(element(key, value) for key, value in arguments.items())

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        pos = skip_space(data, at + len(SECTION_OPEN), n)
        if n - pos < len(INVOKE) and INVOKE.startswith(bytes(data[pos:n])):
            return None
        return data.startswith(INVOKE, pos, n)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        run.inside, run.section, run.section_calls = True, at, 0
        after = self.within(run, at + len(SECTION_OPEN), n, final)
        if after < 0:
            run.inside = False
        return after

    def within(self, run: Run, pos: int, n: int, final: bool) -> int:
        data = run.data
        at = skip_space(data, pos, n)
        first = run.section_calls == 0
        if data.startswith(SECTION_CLOSE, at, n):
            run.inside = False
            end = at + len(SECTION_CLOSE)
            if first:
                run.add((run.section, end), fault=Fault("empty_body", at), arguments=None)
            else:
                run.markup.append((pos, end))
            return end
        if data.startswith(INVOKE, at, n):
            after = self.invoke(run, at, n, final)
            if after >= 0:
                run.markup.append((run.section if first else pos, at))
                run.section_calls = 1
            return after
        rest = bytes(data[at : min(n, at + 64)])
        if SECTION_CLOSE.startswith(rest) or INVOKE.startswith(rest):
            if not final:
                return NEED_MORE
            run.inside = False
            if first:
                run.add((run.section, n), fault=Fault("unclosed", n), arguments=None)
            return n
        run.inside = False
        if not first:
            return at
        found, which = self.ahead(run, at, at, n, final, (SECTION_CLOSE,))
        if found == WAIT:
            run.wait = SECTION_CLOSE
            return NEED_MORE
        if found >= 0 and which < 0:
            # A tag that is talked about, before the next call.
            return found
        end = n if found < 0 else found + len(SECTION_CLOSE)
        kind = "unclosed" if found < 0 else "malformed_tag"
        run.add((run.section, end), fault=Fault(kind, at), arguments=None)
        return end

    def invoke(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        start = at + len(INVOKE)
        stop, which = find_any(data, start, min(n, start + 260), (b'">', b"<", b"\n"))
        if which > 0:
            stop = -2
        name: str | None = None
        name_span: Span | None = None
        if stop >= 0:
            name, name_span = data[start:stop].decode("utf-8", "replace"), (start, stop)
        elif stop == -1 and n - start < 260 and not final:
            return NEED_MORE
        reader = _Reader(data, n)
        try:
            if stop < 0:
                if stop == -1 and n - start < 260:
                    raise EOFError
                raise _Wrong(start, "the name is not closed")
            tree, spans, pos = reader.members(stop + 2, INVOKE_CLOSE, 1)
        except EOFError:
            if not final:
                run.wait = INVOKE_CLOSE
                return NEED_MORE
            run.inside = False
            run.add(
                (at, n), name=name, name_span=name_span, fault=Fault("unclosed", n), arguments=None
            )
            return n
        except _Wrong as wrong:
            ends = (INVOKE_CLOSE, INVOKE, SECTION_CLOSE, SECTION_OPEN)
            found, which = find_any(data, wrong.offset, n, ends)
            if found < 0 and not final:
                run.wait = INVOKE_CLOSE
                return NEED_MORE
            end = n if found < 0 else found + (len(INVOKE_CLOSE) if which == 0 else 0)
            run.inside = 0 <= which < 3
            run.add(
                (at, end),
                name=name,
                name_span=name_span,
                fault=Fault(wrong.kind, wrong.offset, wrong.detail),
                arguments=None,
            )
            return end
        fault = None
        arguments: dict[str, Any] = {}
        tool = run.tools.tool(name) if run.tools is not None else None
        for key, node in tree.items():
            try:
                schema = tool.schema(key) if tool is not None else None
                arguments[key] = shaped(node, schema, tool.root if tool is not None else None)
            except Misfit as misfit:
                arguments[key] = node
                fault = fault or Fault("bad_param_type", spans[key][0], str(misfit), key)
        run.add(
            (at, pos),
            name=name,
            name_span=name_span,
            args_span=(stop + 2, pos - len(INVOKE_CLOSE)),
            arguments=arguments,
            values=spans,
            fault=fault,
        )
        return pos


def shaped(node: Any, schema: Any, root: Any) -> Any:
    """A tree of texts as the schema types it; an element without a child is empty of its type."""
    if isinstance(node, str):
        types = types_of(schema, root)
        if not node.strip() and types and "string" not in types:
            for kind, empty in (("array", []), ("object", {})):
                if kind in types:
                    return empty
        return typed(node, types)[0]
    if isinstance(node, list):
        return [shaped(item, item_schema(schema, root, i), root) for i, item in enumerate(node)]
    members = object_shape(schema, root).properties
    return {key: shaped(value, members.get(key), root) for key, value in node.items()}


class _Reader:
    def __init__(self, data: bytes | bytearray, n: int) -> None:
        self.data = data
        self.n = n

    def members(
        self, pos: int, close: bytes, depth: int
    ) -> tuple[dict[str, Any], dict[str, Span], int]:
        """The elements up to `close`, their spans, and the offset after it."""
        tree: dict[str, Any] = {}
        spans: dict[str, Span] = {}
        while True:
            pos = skip_space(self.data, pos, self.n)
            if self.data.startswith(close, pos, self.n):
                return tree, spans, pos + len(close)
            key, start = self.tag(pos, close)
            if key in tree:
                raise _Wrong(pos, "", "duplicate_key")
            end_tag = P + b"</" + key.encode() + b">"
            tree[key], end, after = self.element(start, end_tag, depth)
            spans[key] = (start, end)
            pos = after

    def tag(self, pos: int, close: bytes) -> tuple[str, int]:
        found = _TAG.match(self.data, pos, self.n)
        if found and not self.data.startswith(INVOKE, pos, self.n):
            return found.group(1).decode("utf-8", "replace"), found.end()
        if self.n - pos < 350 and b">" not in bytes(self.data[pos + len(P) : self.n]):
            raise EOFError
        if close.startswith(bytes(self.data[pos : self.n])):
            raise EOFError
        raise _Wrong(pos, "an element or the close tag is wanted")

    def element(self, start: int, close: bytes, depth: int) -> tuple[Any, int, int]:
        """(value, end of the value, offset after its close tag)."""
        data = self.data
        inner = skip_space(data, start, self.n)
        if not data.startswith(P + b"<", inner, self.n) or data.startswith(close, inner, self.n):
            end = data.find(P, start, self.n)
            if (
                end < 0
                or close.startswith(bytes(data[end : min(self.n, end + len(close))]))
                and (self.n - end < len(close))
            ):
                raise EOFError
            if not data.startswith(close, end, self.n):
                raise _Wrong(end, "the value is never closed")
            return data[start:end].decode("utf-8", "replace"), end, end + len(close)
        if depth >= MAX_DEPTH:
            raise _Wrong(start, "", "too_deep")
        if _TAG.match(data, inner, self.n) and data.startswith(P + b"<item>", inner, self.n):
            items: list[Any] = []
            pos = inner
            item_close = P + b"</item>"
            while True:
                pos = skip_space(data, pos, self.n)
                if data.startswith(close, pos, self.n):
                    return items, pos, pos + len(close)
                key, item_start = self.tag(pos, close)
                if key != "item":
                    raise _Wrong(pos, "an item is wanted")
                value, _, pos = self.element(item_start, item_close, depth + 1)
                items.append(value)
        tree, _, after = self.members(start, close, depth + 1)
        return tree, after - len(close), after

"""Repairs of the key/value family: what a faulty block most likely meant, each by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from toolparse.driver.run import Run
from toolparse.driver.schema import type_of
from toolparse.driver.tools import Misfit
from toolparse.grammars.grammar import Repaired, Span
from toolparse.repair import json_text
from toolparse.scan.find import find_any
from toolparse.scan.pairs import NAME_LIMIT, skip_space, unframed

if TYPE_CHECKING:
    from toolparse.grammars.tagged_pairs import TaggedPairs

# A close tag with a slip in it, at the end of a value: `</parameter1>`, `</param>`.
_STUMP = re.compile(rb"\s*</[^<>\n]{0,40}>\s*\Z")


def call(grammar: TaggedPairs, run: Run, block: Span, made: tuple[str, ...]) -> Repaired | None:
    """The one call of a faulty block, or None where it is past repair."""
    shape = grammar.shape
    data = bytes(run.data[block[0] : block[1]])
    at = data.find(shape.call_open)
    if at < 0 or data.find(shape.call_open, at + 1) >= 0:
        return None
    pos = at + len(shape.call_open)
    if shape.name_end:
        end = data.find(shape.name_end, pos, pos + NAME_LIMIT)
        after = end + len(shape.name_end)
    else:
        found = find_any(data, pos, min(len(data), pos + NAME_LIMIT), (b"\n", b"<"))
        end = after = found[0]
    if end < 0:
        return None
    name = data[pos:end].decode("utf-8", "replace").strip()
    if not name or "<" in name or "\n" in name:
        return None
    repairs = list(made)
    found_values = _values(grammar, data, after, repairs)
    if found_values is None:
        return None
    arguments = _typed(grammar, run, name, found_values, repairs)
    if arguments is None:
        return None
    return Repaired(name, arguments, tuple(dict.fromkeys(repairs)))


def _values(
    grammar: TaggedPairs, data: bytes, pos: int, repairs: list[str]
) -> dict[str, tuple[str, bytes]] | None:
    """Each argument's text and attributes; None where a key cannot be read."""
    shape = grammar.shape
    closers = (shape.value_close, shape.call_close) + (
        (shape.section_close,) if shape.section_close else ()
    )
    values: dict[str, tuple[str, bytes]] = {}
    while True:
        pos = skip_space(data, pos, len(data))
        if not data.startswith(shape.key_open, pos):
            break
        start = pos + len(shape.key_open)
        end = data.find(shape.key_end, start, start + NAME_LIMIT)
        if end < 0 or b"<" in data[start:end] or b"\n" in data[start:end]:
            return None
        key = data[start:end].decode("utf-8", "replace").strip()
        pos = end + len(shape.key_end)
        attributes = b""
        if shape.attributes:
            closed = data.find(b">", pos, pos + NAME_LIMIT)
            if closed < 0:
                return None
            attributes, pos = data[pos:closed], closed + 1
        elif shape.value_open:
            pos = skip_space(data, pos, len(data))
            if not data.startswith(shape.value_open, pos):
                return None
            pos += len(shape.value_open)
        stop, which = find_any(data, pos, len(data), (*closers, shape.key_open))
        if stop < 0:
            return None
        value_end = stop
        after = stop
        if which == 0:
            after = stop + len(shape.value_close)
        else:
            repairs.append("param_close")
            value_end = (
                stop - len(found.group()) if (found := _STUMP.search(data[pos:stop])) else stop
            )
        first, last = unframed(data, pos, value_end) if shape.framed else (pos, value_end)
        if key in values:
            repairs.append("last_wins")
        values[key] = (data[first:last].decode("utf-8", "replace"), attributes)
        pos = skip_space(data, after, len(data))
        while data.startswith(shape.value_close, pos):
            repairs.append("stray_close")
            pos = skip_space(data, pos + len(shape.value_close), len(data))
    rest = data[pos:].strip()
    if not rest.startswith(shape.call_close):
        if not shape.section_close or not rest.startswith(shape.section_close):
            return None
        repairs.append("close_tag")
    return values


def _typed(
    grammar: TaggedPairs,
    run: Run,
    name: str,
    values: dict[str, tuple[str, bytes]],
    repairs: list[str],
) -> dict[str, Any] | None:
    tool = run.tools.tool(name) if run.tools is not None else None
    arguments: dict[str, Any] = {}
    for key, (text, attributes) in values.items():
        wire = grammar.wire_type(attributes)
        if grammar.decode is not None:
            text = grammar.decode(text)
        if wire == "string":
            arguments[key] = text
            continue
        try:
            arguments[key] = grammar.typed(tool, key, text, wire)
        except Misfit:
            types = tool.types.get(key, frozenset()) if tool is not None else frozenset()
            found = json_text.tolerant(text.strip())
            kind = type_of(found[0]) if found else ""
            if found is None or kind not in ("array", "object") or (types and kind not in types):
                return None
            arguments[key] = found[0]
            repairs.extend(found[1])
    return arguments

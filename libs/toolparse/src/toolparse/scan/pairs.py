"""One call of the key/value family, read tag by tag.

A call of the key/value family is `call_open NAME name_end (key_open KEY key_end [ATTR
value_open] VALUE value_close)* call_close`, white space between the parts.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from toolparse.scan.find import find_any

if TYPE_CHECKING:
    from toolparse.driver.tools import ToolSet

# What scan_call found: the call; the end of the text; a fault of the name, of a tag, of a
# value that is never closed, of a value that holds its own opening tag. Of a name alone: its
# tag closes itself.
OK, MORE, NAME, TAG, VALUE, REPEATED, EMPTY = range(7)

NAME_LIMIT: Final = 256
_CDATA: Final = b"<![CDATA["
_SPACE: Final = b" \t\r\n"
_SELF_CLOSED: Final = re.compile(rb'"[ \t]{0,8}/>')

# key_start, key_end, attributes_start, attributes_end, value_start, value_end
Pair = tuple[int, int, int, int, int, int]
Scanned = tuple[int, int, int, int, list[Pair]]
# By the shape and the arguments that a tool declares (their `id`s): a stretch of data[:n], read as
# `final` or not, in which all tags are text of a value, wherever in it the value begins.
Quiet = dict[tuple[int, int], tuple[int, int, int, bool]]


class Shape(NamedTuple):
    """The tags of a format. An empty `name_end` ends a name at a newline or a tag."""

    call_open: bytes
    name_end: bytes
    key_open: bytes
    key_end: bytes
    value_open: bytes
    value_close: bytes
    call_close: bytes
    section_open: bytes
    section_close: bytes
    framed: bool
    line_keys: bool
    attributes: bool
    type_open: bytes = b""
    type_close: bytes = b""
    cdata: bool = False


def skip_space(data: bytes | bytearray, pos: int, n: int) -> int:
    while pos < n and data[pos] in _SPACE:
        pos += 1
    return pos


def begun(tag: bytes, data: bytes | bytearray, pos: int, n: int) -> bool:
    """Whether data[pos:n] is a beginning of the tag, all of it or nothing."""
    size = n - pos
    return size <= 0 or (size <= len(tag) and data.startswith(tag[:size], pos, n))


def scan_name(shape: Shape, data: bytes | bytearray, pos: int, n: int) -> tuple[int, int, int]:
    """(code, end of the name, offset after it)."""
    stop = min(n, pos + NAME_LIMIT)
    if not shape.name_end:
        end = pos
        while end < stop and data[end] not in b"\n<":
            end += 1
        if end == n:
            return MORE, n, n
        return (NAME, pos, pos) if end == stop else (OK, end, end)
    at = pos
    while at < stop:
        if data.startswith(shape.name_end, at, n):
            return (NAME, pos, pos) if at == pos else (OK, at, at + len(shape.name_end))
        if data[at] == 0x22 and at > pos and _SELF_CLOSED.match(data, at, n):
            return EMPTY, at, at
        if data[at] in b"<\n" and not begun(shape.name_end, data, at, n):
            return NAME, at, at
        at += 1
    return (MORE, n, n) if stop == n else (NAME, pos, pos)


def _key(shape: Shape, data: bytes | bytearray, pos: int, n: int) -> tuple[int, tuple[int, ...]]:
    """(code, (key_start, key_end, attributes_start, attributes_end, value_start) or offset)."""
    stop = min(n, pos + NAME_LIMIT)
    at = data.find(shape.key_end, pos, stop)
    if at < 0:
        return (MORE, (n,)) if stop == n else (TAG, (pos,))
    if at == pos or b"\n" in data[pos:at] or b"<" in data[pos:at]:
        return TAG, (pos,)
    after = at + len(shape.key_end)
    if shape.attributes:
        end = data.find(b">", after, min(n, after + NAME_LIMIT))
        if end < 0:
            return (MORE, (n,)) if after + NAME_LIMIT >= n else (TAG, (after,))
        if b"<" in data[after:end] or b"\n" in data[after:end]:
            return TAG, (after,)
        return OK, (pos, at, after, end, end + 1)
    if shape.value_open:
        start = skip_space(data, after, n)
        kind = (after, after)
        if shape.type_open and data.startswith(shape.type_open, start, n):
            head = start + len(shape.type_open)
            end = data.find(shape.type_close, head, min(n, head + NAME_LIMIT))
            if end < 0:
                return (MORE, (n,)) if head + NAME_LIMIT >= n else (TAG, (start,))
            kind = (head, end)
            start = skip_space(data, end + len(shape.type_close), n)
        if not data.startswith(shape.value_open, start, n):
            if shape.type_open and begun(shape.type_open, data, start, n):
                return MORE, (n,)
            if begun(shape.value_open, data, start, n):
                return MORE, (n,)
            return TAG, (start,)
        return OK, (pos, at, *kind, start + len(shape.value_open))
    return OK, (pos, at, after, after, after)


def _value_end(
    shape: Shape,
    data: bytes | bytearray,
    key: bytes,
    pos: int,
    n: int,
    final: bool,
    declared: Collection[str],
    quiet: Quiet,
) -> tuple[int, int]:
    """(code, offset of the tag that closes the value, or of the fault).

    A close tag closes the value where the next argument or the end of the call follows; else
    it is text of the value, if a later one closes it.
    """
    markers = (shape.value_close, shape.call_close, shape.key_open)
    openers = tuple(tag for tag in (shape.section_open, shape.call_open) if tag)
    at = pos
    if shape.cdata and data.startswith(_CDATA, pos, n):
        at = data.find(b"]]>", pos, n)
        if at < 0:
            return MORE, n
    elif shape.cdata and begun(_CDATA, data, pos, n):
        return MORE, n
    first, start, stretch = -1, at, (id(shape), id(declared))
    known = quiet.get(stretch)
    if known is not None and known[2:] == (n, final) and known[0] <= at <= known[1]:
        start, at = known[:2]
    while True:
        at, which = find_any(data, at, n, markers if first < 0 else markers + openers)
        if first < 0:
            quiet[stretch] = start, at if at >= 0 else n, n, final
        if at < 0 or which > 2:
            # Where no later tag closes the value, the first one did.
            return (MORE, n) if first < 0 or (at < 0 and not final) else (OK, first)
        if which == 0:
            if first >= 0 and not data[first + len(shape.value_close) : at].strip():
                # Closed twice: the second one belongs to nothing.
                return OK, first
            code = _closes(shape, data, at, n)
            if code == OK or (code == MORE and final):
                return OK, at if code == OK or first < 0 else first
            if code == MORE:
                return MORE, n
            first = at if first < 0 else first
        else:
            code = _ends(shape, data, at, which, key, n, final, declared)
            if code != OK:
                return (OK, first) if first >= 0 and code != MORE else (code, at)
        at += 1


def _closes(shape: Shape, data: bytes | bytearray, at: int, n: int) -> int:
    """Whether an argument or the end of the call follows the close tag of a value at `at`."""
    after = skip_space(data, at + len(shape.value_close), n)
    tags = (shape.key_open, shape.call_close)
    if any(data.startswith(tag, after, n) for tag in tags):
        return OK
    rest = bytes(data[after : after + max(map(len, tags))][: n - after])
    return MORE if any(tag.startswith(rest) for tag in tags) else TAG


def _ends(
    shape: Shape,
    data: bytes | bytearray,
    at: int,
    which: int,
    key: bytes,
    n: int,
    final: bool,
    declared: Collection[str],
) -> int:
    """Whether a tag inside a value shows that it was never closed: OK where it is text."""
    if which == 1:
        closers = (shape.section_close or shape.call_open, shape.call_open, shape.section_open)
        after = skip_space(data, at + len(shape.call_close), n)
        rest = bytes(data[after : after + max(map(len, closers))][: n - after])
        if any(tag and rest.startswith(tag) for tag in closers):
            return VALUE
        if any(tag.startswith(rest) for tag in closers if tag):
            # The text ends where this would be decided.
            return VALUE if final else MORE
        return OK
    start = at + len(shape.key_open)
    if not shape.line_keys or not (at and data[at - 1] == 0x0A):
        code, header = _key(shape, data, start, n)
        if code == MORE and not final:
            return MORE
        if code != OK:
            return OK
        named = bytes(data[header[0] : header[1]]).decode("utf-8", "replace").strip()
        if shape.line_keys and named not in declared:
            return OK
    if not final and n - start < len(key) + len(shape.key_end):
        return MORE
    return REPEATED if data.startswith(key + shape.key_end, start, n) else VALUE


def scan_call(
    shape: Shape,
    data: bytes | bytearray,
    pos: int,
    n: int,
    final: bool,
    tools: ToolSet | None = None,
    quiet: Quiet | None = None,
) -> Scanned:
    """Reads one call whose name begins at `pos`, up to its close tag.

    quiet: what earlier calls of the same data left, so that no value is looked through again.
    Gives (code, offset, name_start, name_end, pairs): `offset` is the end of the call or
    the fault, `pairs` the arguments that were read whole.
    """
    pairs: list[Pair] = []
    quiet = {} if quiet is None else quiet
    name_start = pos
    code, name_end, pos = scan_name(shape, data, pos, n)
    if code == EMPTY:
        return self_closed(shape, data, name_start, name_end, n)
    if code != OK:
        return code, pos, -1, -1, pairs
    while name_end > name_start and data[name_end - 1] in _SPACE:
        name_end -= 1
    while name_start < name_end and data[name_start] in _SPACE:
        name_start += 1
    declared: Collection[str] = ()
    if tools is not None and shape.line_keys:
        tool = tools.tool(data[name_start:name_end].decode("utf-8", "replace"))
        declared = tool.types if tool is not None else ()
    while True:
        pos = skip_space(data, pos, n)
        if data.startswith(shape.call_close, pos, n):
            return OK, pos + len(shape.call_close), name_start, name_end, pairs
        if not data.startswith(shape.key_open, pos, n):
            partial = any(begun(tag, data, pos, n) for tag in (shape.call_close, shape.key_open))
            return (MORE if partial else TAG), (n if partial else pos), name_start, name_end, pairs
        code, key = _key(shape, data, pos + len(shape.key_open), n)
        if code != OK:
            return code, key[0], name_start, name_end, pairs
        start = key[4]
        named = bytes(data[key[0] : key[1]])
        code, end = _value_end(shape, data, named, start, n, final, declared, quiet)
        if code != OK:
            return code, end, name_start, name_end, pairs
        pos = end + len(shape.value_close)
        if shape.framed:
            start, end = unframed(data, start, end)
        pairs.append((key[0], key[1], key[2], key[3], start, end))


def self_closed(shape: Shape, data: bytes | bytearray, start: int, end: int, n: int) -> Scanned:
    """A call without arguments that closes itself, `<invoke name="N"/>`."""
    found = _SELF_CLOSED.match(data, end, n)
    assert found
    # What of the close tag of a call stands behind its own tag.
    rest = shape.call_close.partition(b">")[2]
    pos = skip_space(data, found.end(), n) if rest else found.end()
    if rest and not data.startswith(rest, pos, n):
        code = MORE if begun(rest, data, pos, n) else TAG
        return code, n if code == MORE else pos, start, end, []
    return OK, pos + len(rest), start, end, []


def unframed(data: bytes | bytearray, start: int, end: int) -> tuple[int, int]:
    """Without the one newline on each side that the template writes.

    A carriage return before the last newline is the value's own unless the frame began with one.
    """
    carriage = start + 1 < end and data[start] == 0x0D and data[start + 1] == 0x0A
    if carriage:
        start += 2
    elif start < end and data[start] == 0x0A:
        start += 1
    if start < end and data[end - 1] == 0x0A:
        end -= 1
        if carriage and start < end and data[end - 1] == 0x0D:
            end -= 1
    return start, end

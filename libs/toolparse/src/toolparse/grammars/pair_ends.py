"""Where a block of the key/value family ends that is no whole call, and where the next begins."""

from __future__ import annotations

from toolparse.driver.run import Run
from toolparse.grammars.grammar import NEED_MORE, WAIT, Grammar, skip_space
from toolparse.scan.pairs import EMPTY, MORE, OK, Scanned, Shape, begun, scan_name

# So often the rest of a text is looked at again.
_LOOKS = 32


class PairEnds(Grammar):
    """What `TaggedPairs` knows of ends. window: the longest tag that may follow a call."""

    shape: Shape
    single: bool
    json_body: bool
    wrapper_prefix: bytes
    window: int
    outer_close: bytes

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        shape = self.shape
        if not shape.section_open or not data.startswith(shape.section_open, at, n):
            return self.named(data, at, n)
        pos = skip_space(data, at + len(shape.section_open), n)
        if data.startswith(shape.call_open, pos, n):
            return True
        return None if begun(shape.call_open, data, pos, n) else False

    def named(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        """Whether a name and what may follow it stand behind the open tag of a call."""
        shape = self.shape
        code, end, pos = scan_name(shape, data, at + len(shape.call_open), n)
        if code == MORE:
            return None
        if code == EMPTY:
            return True
        if (
            code != OK
            or not data[at + len(shape.call_open) : end].strip()
            or (not shape.name_end and b" " in data[at + len(shape.call_open) : end].strip())
        ):
            return False
        pos = skip_space(data, pos, n)
        rest = bytes(data[pos : pos + self.window][: n - pos])
        tags = (shape.key_open, shape.call_close, *((b"{",) if self.json_body else ()))
        if any(rest.startswith(tag) for tag in tags):
            return True
        return None if any(tag.startswith(rest) for tag in tags) else False

    def next_after(self, run: Run, start: int, offset: int, n: int, final: bool) -> tuple[int, int]:
        """`ahead`, where the next call of the section counts as well."""
        shape = self.shape
        limit, which = self.ahead(run, start, offset, n, final, (self.outer_close,))
        if not shape.section_open or self.single:
            return limit, which
        pos = start
        while True:
            at = run.data.find(shape.call_open, pos, limit if limit >= 0 else n)
            if at < 0:
                return limit, which
            whole = self.named(run.data, at, n)
            if whole or (whole is None and not final):
                return (at if whole else WAIT), -1
            pos = at + 1

    def read_end(self, start: int, scanned: Scanned | None) -> int:
        """Where what was read whole of a faulty call ends."""
        if scanned is None or scanned[2] < 0:
            return start + 1
        return scanned[4][-1][5] + len(self.shape.value_close) if scanned[4] else scanned[3]

    def past_orphan(self, run: Run, at: int, end: int, n: int, final: bool) -> int:
        """Where content goes on after a tag that opens no call: at the next call, if one is
        there before the fault at `end`."""
        if end == n:
            # The rest is looked at again so often; then a text of such tags is content.
            run.looks += 1
            if run.looks > _LOOKS:
                return n
        found, _ = self.ahead(run, at + 1, end, max(end, at + 1), True, ())
        return found if found >= 0 else max(end, at + 1)

    def wrapper_before(self, data: bytes | bytearray, at: int) -> int:
        """The start of a misspelled section tag right before `at`, or -1."""
        if not self.wrapper_prefix:
            return -1
        end = at
        while end and data[end - 1] in b" \t\r\n":
            end -= 1
        start = data.rfind(self.wrapper_prefix, max(0, end - 64), end)
        if start < 0 or data[end - 1] != 0x3E or data.find(b">", start, end) != end - 1:
            return -1
        return start

    def wrapper_behind(self, data: bytes | bytearray, end: int, n: int, final: bool) -> int:
        """The end of the close tag of a section behind `end`, also of a misspelled one; `end`
        where there is none, or NEED_MORE."""
        after = skip_space(data, end, n)
        rest = bytes(data[after : after + 64][: n - after])
        if rest.startswith(self.shape.section_close):
            return after + len(self.shape.section_close)
        tags = [self.shape.section_close]
        if self.wrapper_prefix:
            tags.append(b"</" + self.wrapper_prefix[1:])
            stop = rest.find(b">")
            if rest.startswith(tags[1]) and b"<" not in rest[1:]:
                if stop >= 0:
                    return after + stop + 1
                return NEED_MORE if not final and len(rest) < 64 else end
        partial = any(tag.startswith(rest) for tag in tags)
        return NEED_MORE if partial and not final else end

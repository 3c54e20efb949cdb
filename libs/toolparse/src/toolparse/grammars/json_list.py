"""Arrays of calls.

`TaggedArray`: an open tag, a JSON array of calls, perhaps a close tag (Mistral, Cohere, ...).
`BareArray`: the array alone, at the start of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from toolparse.driver.run import Run
from toolparse.grammars.call_object import Keys, objects
from toolparse.grammars.grammar import NEED_MORE, WAIT, Fault, Grammar, Span, Written, skip_space
from toolparse.grammars.tagged_json import json_fault
from toolparse.repair import json_text
from toolparse.scan.find import find_any
from toolparse.scan.json_value import json_value
from toolparse.scan.pairs import begun


class TaggedArray(Grammar):
    """close: empty where the array ends the block; `alone`: one object may stand for the list;
    `also`: other spellings of the open tag."""

    def __init__(
        self,
        open_tag: bytes,
        close_tag: bytes = b"",
        keys: Keys | None = None,
        alone: bool = False,
        calls_in_thought: bool = False,
        also: tuple[bytes, ...] = (),
    ) -> None:
        self.open = open_tag
        self.close = close_tag
        self.keys = keys or Keys()
        self.alone = alone
        self.calls_in_thought = calls_in_thought
        self.pad = ""
        self.ids = bool(keys) and self.keys.id == b'"tool_call_id"'
        self.openers = (open_tag, *also)
        super().__init__()

    def write(self, calls: Sequence[Written]) -> str:
        body = json.dumps(objects(self.keys, calls, self.ids), ensure_ascii=False)
        return f"{self.open.decode()}{self.pad}{body}{self.close.decode()}"

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        opened = next(tag for tag in self.openers if run.data.startswith(tag, at, n))
        return self.array(run, at, at + len(opened), n, final)

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        opened = next((len(tag) for tag in self.openers if data.startswith(tag, at, n)), 0)
        pos = skip_space(data, at + opened, n)
        if data[pos : pos + 1] not in (b"", b"["):
            return False
        inner = skip_space(data, pos + 1, n)
        return data[inner] in b"{]" if inner < n else None

    def array(self, run: Run, at: int, pos: int, n: int, final: bool) -> int:
        """The array at `pos` of the block at `at`."""
        data = run.data
        pos = skip_space(data, pos, n)
        if pos >= n and not final:
            return NEED_MORE
        if pos >= n and self.open[-1:].isalnum():
            # A word at the end of the text.
            return n
        if self.close and data.startswith(self.close, pos, n):
            end = pos + len(self.close)
            run.add((at, end), fault=Fault("empty_body", pos), arguments=None)
            return end
        if data[pos : pos + 1] not in (b"{", b"[", b""):
            after = self.mention(run, pos, n, final, (self.close,) if self.close else ())
            if after != 0:
                return after
        code, offset, duplicate, _ = json_value(data, pos, n)
        if code == 1:
            return self.unclosed(run, at, n, final)
        if code:
            return self.broken(run, at, pos, offset, n, final, json_fault(code, offset))
        after = skip_space(data, offset, n)
        end = offset
        if self.close:
            if not data.startswith(self.close, after, n):
                if begun(self.close, data, after, n):
                    return self.unclosed(run, at, n, final)
                kind = "bad_json" if data[after] in b"]}" else "extra_data"
                return self.broken(run, at, pos, after, n, final, Fault(kind, after))
            end = after + len(self.close)
        self.elements(run, (at, end), pos, offset)
        return end

    def elements(self, run: Run, block: Span, pos: int, end: int) -> None:
        """One attempt per object of the whole array data[pos:end]."""
        data = run.data
        if data[pos] != 0x5B:
            if self.alone:
                self.keys.add(run, block, pos, end)
            elif data[pos] == 0x7B:
                fault = Fault("malformed_tag", pos, "the calls must stand in a list")
                repair = self.keys.repairer(run, pos, end, ("list_brackets",))
                run.add(block, fault=fault, repair=repair, arguments=None)
            else:
                run.add(block, fault=Fault("not_object", pos), arguments=None)
            return
        at = skip_space(data, pos + 1, end)
        if data[at] == 0x5D:
            run.add(block, fault=Fault("empty_body", at), arguments=None)
            return
        while True:
            _, after, _, _ = json_value(data, at, end)
            self.keys.add(run, block, at, after)
            at = skip_space(data, after, end)
            if data[at] != 0x2C:
                return
            at = skip_space(data, at + 1, end)

    def unclosed(self, run: Run, at: int, n: int, final: bool) -> int:
        if not final:
            run.wait = self.close or b"]"
            return NEED_MORE
        run.add((at, n), fault=Fault("unclosed", n), arguments=None)
        return n

    def broken(
        self, run: Run, at: int, pos: int, offset: int, n: int, final: bool, fault: Fault
    ) -> int:
        closes = (self.close,) if self.close else ()
        found, which = self.ahead(run, pos, offset, n, final, closes)
        if found == WAIT:
            run.wait = self.close or self.open
            return NEED_MORE
        end = n if found < 0 else found + (len(self.close) if which == 0 else 0)
        body_end = n if found < 0 else found
        if run.lenient and not run.in_think and (found >= 0 or not self.close):
            salvaged = json_text.tolerant(bytes(run.data[pos:body_end]).decode("utf-8", "replace"))
            if (
                salvaged is not None
                and isinstance(salvaged[0], list)
                and "close_brackets" not in (() if self.close else salvaged[1])
            ):
                for item in salvaged[0]:
                    self.salvage(run, (at, end), item, fault, salvaged[1])
                if salvaged[0]:
                    return end
        run.add((at, end), fault=fault, arguments=None)
        return end

    def salvage(
        self, run: Run, block: Span, item: Any, fault: Fault, made: tuple[str, ...]
    ) -> None:
        body = json.dumps(item).encode()
        run.add(
            block,
            fault=fault,
            repair=lambda: json_text.call_object(body, self.keys.name, self.keys.arguments, made),
            arguments=None,
        )


class Mistral(TaggedArray):
    """`[TOOL_CALLS] [{...}, ...]`, or `[TOOL_CALLS]NAME[ARGS]{...}` with the marker repeated."""

    ARGS = b"[ARGS]"
    CALL_ID = b"[CALL_ID]"
    NAMED = re.compile(rb"\s*[A-Za-z0-9_.-]{1,128}")

    def __init__(self) -> None:
        super().__init__(b"[TOOL_CALLS]")
        self.pad = " "

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        named = self.NAMED.match(data, at + len(self.open), n)
        if named is None:
            return super().begins(data, at, n)
        if self.ARGS.startswith(bytes(data[named.end() : min(n, named.end() + len(self.ARGS))])):
            return True if n - named.end() >= len(self.ARGS) else None
        return data.startswith(self.CALL_ID, named.end(), n)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        start = at + len(self.open)
        pos = skip_space(data, start, n)
        if pos >= n and not final:
            return NEED_MORE
        if pos >= n or data[pos] == 0x5B or data[pos] == 0x7B:
            return self.array(run, at, pos, n, final)
        limit = min(n, start + 256)
        sep, _ = find_any(data, pos, limit, (self.ARGS, b"{", self.open))
        if sep < 0 and limit == n:
            return self.unclosed(run, at, n, final)
        if sep < 0 or not data.startswith(self.ARGS, sep, n):
            if b" " in data[pos : max(pos, sep)]:
                after = self.mention(run, pos, n, final, ())
                if after != 0:
                    return after
            fault = Fault("malformed_tag", pos, "[ARGS] is wanted after the name")
            return self.broken(run, at, pos, max(pos, sep), n, final, fault)
        native = None
        name_end = sep
        cut = data.find(self.CALL_ID, pos, sep)
        if cut >= 0:
            name_end = cut
            native = data[cut + len(self.CALL_ID) : sep].decode("utf-8", "replace").strip()
        name = data[pos:name_end].decode("utf-8", "replace").strip()
        args = skip_space(data, sep + len(self.ARGS), n)
        code, offset, duplicate, _ = json_value(data, args, n)
        if code == 1:
            if final:
                run.add(
                    (at, n),
                    name=name,
                    name_span=(pos, name_end),
                    id=native,
                    fault=Fault("unclosed", n),
                    arguments=None,
                )
                return n
            run.wait = b"}"
            return NEED_MORE
        if code:
            return self.broken(run, at, args, offset, n, final, json_fault(code, offset))
        wrong: Fault | None = None
        if not name:
            wrong = Fault("missing_name", pos)
        elif duplicate >= 0:
            wrong = Fault("duplicate_key", duplicate)
        elif data[args] != 0x7B:
            wrong = Fault("args_not_object", args)
        run.add(
            (at, offset),
            name=name or None,
            name_span=(pos, name_end),
            id=native,
            args_span=(args, offset),
            fault=wrong,
        )
        return offset


class BareArray(TaggedArray):
    """An array of calls at the start of the text, perhaps in a code fence, or after a tag."""

    FENCE = b"```json"
    FENCED = re.compile(rb'```(?:json)?\s{0,64}\[\s{0,64}\{\s{0,64}"name"\s{0,64}:')
    uniform = False

    def __init__(self, openers: tuple[bytes, ...], fences: bool = False) -> None:
        super().__init__(openers[0])
        # A fence with a list of calls counts anywhere, not at the start alone.
        self.openers = (*openers, b"```") if fences else openers
        Grammar.__init__(self)

    def write(self, calls: Sequence[Written]) -> str:
        return json.dumps(objects(self.keys, calls), ensure_ascii=False)

    def find(self, run: Run, pos: int, n: int, final: bool) -> tuple[int, int]:
        if not run.attempts:
            at = skip_space(run.data, pos, n)
            if run.at_start(at) and run.data[at : at + 1] in (b"[", b"`"):
                return at, self.first_opener
        return super().find(run, pos, n, final)

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        if not data.startswith(b"```", at, n):
            return super().begins(data, at, n)
        if self.FENCED.match(data, at, n):
            return True
        return None if n - at < 300 else False

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        pos = at
        if data[at] == 0x60 and not run.at_start(at):
            begins = self.begins(data, at, n)
            if not begins:
                return at + 3 if final or begins is False else NEED_MORE
        for tag in (self.FENCE, *self.openers, b"```"):
            if data.startswith(tag, at, n):
                pos = at + len(tag)
                break
        else:
            if data[at] == 0x60 and not final and n - at < len(self.FENCE):
                return NEED_MORE
        pos = skip_space(data, pos, n)
        if pos + 1 >= n and not final:
            return NEED_MORE
        inner = skip_space(data, pos + 1, n)
        if inner >= n and not final:
            return NEED_MORE
        looks = data[pos : pos + 1] == b"[" and data[inner : inner + 1] == b"{"
        if not looks:
            return at + 1
        after = self.array(run, at, pos, n, final)
        if after >= 0 and data[at] == 0x60:
            closed = skip_space(data, after, n)
            if data.startswith(b"```", closed, n):
                run.markup.append((after, closed + 3))
                return closed + 3
        return after

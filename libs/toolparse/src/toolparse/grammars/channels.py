"""Formats made of messages, whose header says where each one goes.

A call to a tool is executed because of its channel, so a think block needs no guessing:
Harmony (gpt-oss), Muse, Beam, Inkling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolparse.driver.run import Run
from toolparse.grammars.grammar import (
    NEED_MORE,
    WAIT,
    Fault,
    Grammar,
    Repaired,
    Span,
    Written,
    skip_space,
)
from toolparse.grammars.tagged_json import json_fault
from toolparse.grammars.tagged_pairs import TaggedPairs
from toolparse.grammars.variants import Namespaced
from toolparse.repair import json_text
from toolparse.scan.find import find_any
from toolparse.scan.json_value import json_value
from toolparse.scan.pairs import OK, Shape, scan_call

_RECIPIENT = re.compile(rb"\bto=([^\s<]+)")
_HARMONY_CHANNEL = re.compile(rb"<\|channel\|>\s*([A-Za-z]+)")
HEADER_LIMIT = 512
# A byte that UTF-8 does not have.
_NEVER = b"\xff"


def json_body(
    run: Run,
    block: Span,
    start: int,
    end: int,
    name: str | None,
    name_span: Span | None,
    cut: bool,
) -> None:
    """Adds the call whose arguments are the JSON text data[start:end], all of a message."""
    data = run.data
    pos = skip_space(data, start, end)
    while end > pos and data[end - 1] in b" \t\r\n":
        end -= 1
    code, offset, duplicate, _ = json_value(data, pos, end)
    fault = None
    args: Span | None = (pos, end)
    if code == 1 and cut:
        fault, args = Fault("unclosed", end), None
    elif pos == end:
        fault, args = Fault("empty_body", pos), None
    elif code:
        fault, args = json_fault(code, offset), None
    elif offset != end:
        after = skip_space(data, offset, end)
        fault = Fault("bad_json" if data[after] in b"]}" else "extra_data", after)
        args = None
    elif not name:
        fault = Fault("missing_name", block[0])
    elif duplicate >= 0:
        fault = Fault("duplicate_key", duplicate)
    elif data[pos] != 0x7B:
        fault = Fault("args_not_object", pos)

    def repair() -> Repaired | None:
        found = json_text.tolerant(bytes(data[pos:end]).decode("utf-8", "replace"))
        fixed = json_text.given_object(found[0]) if found else None
        if not found or not fixed or not name:
            return None
        return Repaired(name, fixed[0], tuple(dict.fromkeys(found[1] + fixed[1])))

    more: dict[str, Any] = {"arguments": None} if fault is not None else {}
    run.add(
        block,
        name=name,
        name_span=name_span,
        args_span=args,
        fault=fault,
        repair=None if cut and fault and fault.kind == "unclosed" else repair,
        **more,
    )


class Messages(Grammar):
    """header ... `message` body `ends`. `starts`: what may begin a header."""

    starts: tuple[bytes, ...] = ()
    message = b"<|message|>"
    ends: tuple[bytes, ...] = ()
    stops: tuple[bytes, ...] = ()
    # Whether the text may begin inside a header, after the prompt's own beginning of it.
    bare_header: re.Pattern[bytes] | None = None

    def __init__(self) -> None:
        self.openers = self.starts
        super().__init__()

    def find(self, run: Run, pos: int, n: int, final: bool) -> tuple[int, int]:
        if pos == 0 and self.bare_header is not None:
            limit = min(n, HEADER_LIMIT)
            if self.bare_header.match(run.data, 0, limit):
                return 0, self.first_opener
            if not final and n < HEADER_LIMIT and run.data.find(self.message, 0, n) < 0:
                return WAIT, -1
        return super().find(run, pos, n, final)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        limit = min(n, at + HEADER_LIMIT)
        tags = (self.message, *self.ends, self.starts[0])
        start, which = find_any(data, at + 1, limit, tags)
        if start < 0 or which:
            if start < 0 and limit == n and not final:
                return NEED_MORE
            return self.no_message(run, at, n, start)
        body = start + len(self.message)
        end, which = find_any(data, body, n, self.terminators(data, at, start))
        if end < 0 and not final:
            run.wait = None
            return NEED_MORE
        cut = end < 0
        end = n if cut else end
        found = self.terminators(data, at, start)[which] if not cut else b""
        after = end + (len(found) if found in self.ends else 0)
        self.one(run, (at, after), start, (body, end), cut)
        return after

    def terminators(self, data: bytes | bytearray, at: int, start: int) -> tuple[bytes, ...]:
        return self.ends + self.starts

    def no_message(self, run: Run, at: int, n: int, stop: int) -> int:
        """A header without a message: markup where its first tag is one, else content."""
        data = run.data
        tag = next((t for t in self.starts if data.startswith(t, at, n)), None)
        if tag is None:
            return at + 1
        run.markup.append((at, at + len(tag)))
        return at + len(tag)

    def one(self, run: Run, block: Span, start: int, body: Span, cut: bool) -> None:
        """One message: its block, the end of its header, its body."""
        raise NotImplementedError

    def around(self, run: Run, block: Span, body: Span) -> None:
        """Marks everything but the body as markup."""
        run.markup.append((block[0], body[0]))
        if body[1] < block[1]:
            run.markup.append((body[1], block[1]))


class Harmony(Messages):
    """gpt-oss: a recipient in the role or channel part makes a message a call; analysis is
    reasoning; final and commentary without a recipient are content."""

    starts = (b"<|start|>", b"<|channel|>")
    ends = (b"<|call|>", b"<|end|>", b"<|return|>")
    bare_header = re.compile(
        rb"(?:to=[^\s<]+|analysis|commentary|final)[^<]{0,200}"
        rb"(?:<\|(?:channel|constrain)\|>[^<]{0,200})*<\|message\|>"
    )

    def write(self, calls: Sequence[Written]) -> str:
        return "".join(
            f"<|start|>assistant<|channel|>commentary to=functions.{name} "
            f"<|constrain|>json<|message|>{self.spell(arguments)}<|call|>"
            for name, arguments in calls
        )

    def terminators(self, data: bytes | bytearray, at: int, start: int) -> tuple[bytes, ...]:
        return (*self.ends, b"<|start|>")

    def one(self, run: Run, block: Span, start: int, body: Span, cut: bool) -> None:
        data = run.data
        header = bytes(data[block[0] : start])
        recipient = _RECIPIENT.search(header)
        channel = _HARMONY_CHANNEL.search(header)
        kind = channel.group(1) if channel else header.split(b" ")[0]
        if recipient and recipient.group(1) not in (b"user", b"assistant"):
            raw = recipient.group(1).removeprefix(b"functions.")
            end = block[0] + recipient.end(1)
            name = raw.decode("utf-8", "replace")
            json_body(run, block, *body, name, (end - len(raw), end), cut)
            return
        if kind == b"analysis":
            run.reasoning.append(body)
        self.around(run, block, body)


class Muse(Messages):
    """`to=NAME` messages carry tagged calls; `to=self` is reasoning, `to=user` content."""

    starts = (b"<|start|>",)
    ends = (b"<|eom|>", b"<|eot|>")
    bare_header = re.compile(rb"\s{0,8}to=[^\s<]{1,256}\s{0,8}<\|message\|>")

    def __init__(self) -> None:
        super().__init__()
        self.pairs = Namespaced(
            Shape(
                b'<atem:invoke name="', b'">', b'<atem:parameter name="', b'">', b"",
                b"</atem:parameter>", b"</atem:invoke>",
                b"<atem:function_calls>", b"</atem:function_calls>", False, True, False,
            ),
            alone=False,
            fallback="json",
        )  # fmt: skip

    def write(self, calls: Sequence[Written]) -> str:
        return (
            "<|eom|>".join(
                f"<|start|>assistant to={name}<|message|>{self.pairs.write([(name, arguments)])}"
                for name, arguments in calls
            )
            + "<|eom|>"
        )

    def spell(self, arguments: Mapping[str, Any]) -> str:
        return self.pairs.spell(arguments)

    def terminators(self, data: bytes | bytearray, at: int, start: int) -> tuple[bytes, ...]:
        # An answer may quote a header; the calls of a tool's message hold none.
        recipient = _RECIPIENT.search(bytes(data[at:start]))
        spoken = recipient is None or recipient.group(1) in (b"user", b"self")
        return self.ends if spoken else (*self.ends, *self.starts)

    def one(self, run: Run, block: Span, start: int, body: Span, cut: bool) -> None:
        recipient = _RECIPIENT.search(bytes(run.data[block[0] : start]))
        target = recipient.group(1) if recipient else b"user"
        if target in (b"user", b"self"):
            if target == b"self":
                run.reasoning.append(body)
            self.around(run, block, body)
            return
        first = len(run.attempts)
        pairs, pos = self.pairs, body[0]
        pos = skip_space(run.data, pos, body[1])
        if run.data.startswith(pairs.shape.section_open, pos, body[1]):
            markup = len(run.markup)
            pos = pairs.block(run, pos, body[1], True)
            while run.inside:
                pos = pairs.within(run, pos, body[1], True)
            del run.markup[markup:]
            run.markup.append(block)
        if len(run.attempts) == first:
            name = target.decode("utf-8", "replace")
            kind = "unclosed" if cut else "malformed_tag"
            run.add(block, name=name, fault=Fault(kind, body[0]), arguments=None)


class Beam(Messages):
    """` to=NAME<|channel|>... <|constrain|>xml<|message|>` and framed parameters."""

    starts = (b"<|start|>", b"<|channel|>")
    ends = (b"<|call|>", b"<|end|>", b"<|return|>")
    bare_header = re.compile(
        rb"\s{0,8}(?:to=[^\s<]+)?\s{0,8}<\|channel\|>[^<]{0,200}"
        rb"(?:<\|constrain\|>[^<]{0,200})?<\|message\|>"
    )
    shape = Shape(
        _NEVER, b"", b'<rfl:parameter name="', b'">', b"", b"</rfl:parameter>", _NEVER,
        b"", b"", True, True, False,
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.pairs = TaggedPairs(self.shape, line="")

    def write(self, calls: Sequence[Written]) -> str:
        return (
            "<|end|><|start|>assistant".join(
                f" to={name}<|channel|>analysis <|constrain|>xml<|message|>{self.spell(arguments)}"
                for name, arguments in calls
            )
            + "<|call|>"
        )

    def spell(self, arguments: Mapping[str, Any]) -> str:
        return self.pairs.spell(arguments)

    def one(self, run: Run, block: Span, start: int, body: Span, cut: bool) -> None:
        header = bytes(run.data[block[0] : start])
        recipient = _RECIPIENT.search(header)
        channel = _HARMONY_CHANNEL.search(header)
        if recipient is None or recipient.group(1) in (b"user", b"assistant"):
            if channel and channel.group(1) == b"analysis":
                run.reasoning.append(body)
            self.around(run, block, body)
            return
        name_span = (block[0] + recipient.start(1), block[0] + recipient.end(1))
        # The message has no tags for the call: a copy with them is scanned, offsets shifted.
        text = b"n\n" + bytes(run.data[body[0] : body[1]]) + _NEVER
        code, offset, _, _, pairs = scan_call(self.shape, text, 0, len(text), True)
        shift = body[0] - 2
        moved = [tuple(x + shift for x in pair) for pair in pairs]
        scanned = (code, offset + shift, *name_span, moved)
        if cut:
            # Its arguments end with the message; without that end more may have followed.
            kind = "unclosed"
        elif code == OK:
            self.pairs.finish(run, block, block[0], scanned, None)  # type: ignore[arg-type]
            return
        else:
            kind = "malformed_tag"
        name = recipient.group(1).decode("utf-8", "replace")
        run.add(
            block,
            name=name,
            name_span=name_span,
            fault=Fault(kind, body[1] if cut else offset + shift),
            arguments=None,
        )


def quoted(text: str) -> str:
    """An attribute's text with its escapes."""
    return text.replace("&", "&amp;").replace('"', "&quot;")


def unquoted(text: str) -> str:
    """An attribute's text without its escapes."""
    return (
        text.replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )

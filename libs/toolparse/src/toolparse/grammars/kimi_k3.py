"""Kimi K3: elements `<|open|>TAG attributes<|sep|> ... <|close|>TAG<|sep|>`.

think is reasoning, response is content, tools holds the calls; values carry their type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolparse.driver.run import Run
from toolparse.driver.schema import type_of
from toolparse.grammars.channels import quoted, unquoted
from toolparse.grammars.grammar import NEED_MORE, Fault, Grammar, Span, Written, skip_space
from toolparse.scan.find import find_any
from toolparse.scan.json_value import json_value

OPEN, CLOSE, SEP = b"<|open|>", b"<|close|>", b"<|sep|>"
_ATTRIBUTE = re.compile(r'([A-Za-z_]+)="([^"]*)"')
HEADER_LIMIT = 1024


def header(data: bytes | bytearray, at: int, n: int) -> tuple[int, str]:
    """(offset of the separator, the text before it); -1: none is near, -2: a tag comes first."""
    end, which = find_any(data, at, min(n, at + HEADER_LIMIT), (SEP, OPEN, CLOSE))
    if which > 0:
        return -2, ""
    return end, data[at:end].decode("utf-8", "replace") if end >= 0 else ""


def tag(text: str, kind: bytes = OPEN) -> str:
    return f"{kind.decode()}{text}{SEP.decode()}"


def json_type(value: Any) -> str:
    """The type word that the wire carries."""
    kind = type_of(value)
    return "number" if kind == "integer" else kind


class KimiK3(Grammar):
    openers = (OPEN, CLOSE)

    def write(self, calls: Sequence[Written]) -> str:
        body = "".join(
            tag(f'call tool="{quoted(name)}" index="{i}"')
            + self.spell(arguments)
            + tag("call", CLOSE)
            for i, (name, arguments) in enumerate(calls, 1)
        )
        return tag("tools") + body + tag("tools", CLOSE)

    def spell(self, arguments: Mapping[str, Any]) -> str:
        return "".join(
            tag(f'argument key="{quoted(key)}" type="{json_type(value)}"')
            + (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            + tag("argument", CLOSE)
            for key, value in arguments.items()
        )

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        opened = data.startswith(OPEN, at, n)
        head = at + len(OPEN if opened else CLOSE)
        end, text = header(data, head, n)
        if end < 0:
            if end == -1 and not final and n - head < HEADER_LIMIT:
                return NEED_MORE
            run.markup.append((at, head))
            return head
        tag = text.split(" ", 1)[0].strip()
        body = end + len(SEP)
        if opened and tag == "tools":
            run.inside, run.section, run.section_calls = True, at, 0
            run.markup.append((at, body))
            return body
        run.markup.append((at, body))
        return body

    def within(self, run: Run, pos: int, n: int, final: bool) -> int:
        data = run.data
        at = skip_space(data, pos, n)
        rest = bytes(data[at : at + 32][: n - at])
        close = CLOSE + b"tools" + SEP
        if rest.startswith(close):
            run.inside = False
            run.markup.append((pos, at + len(close)))
            return at + len(close)
        start = OPEN + b"call"
        if rest.startswith(start):
            after = self.call(run, at, n, final)
            if after >= 0:
                run.markup.append((pos, at))
            return after
        if not final and (close.startswith(rest) or start.startswith(rest)):
            return NEED_MORE
        run.inside = False
        return at

    def call(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        close = CLOSE + b"call" + SEP
        reader = _Call(data, n)
        try:
            end = reader.read(at)
        except EOFError:
            if not final:
                run.wait = close
                return NEED_MORE
            run.inside = False
            run.add(
                (at, n),
                name=reader.name,
                name_span=reader.name_span,
                id=reader.id,
                fault=Fault("unclosed", n),
                arguments=None,
            )
            return n
        except _Wrong as wrong:
            ends = (close, OPEN + b"call", CLOSE + b"tools" + SEP, OPEN + b"tools" + SEP)
            stop, which = find_any(data, max(wrong.offset, at + 1), n, ends)
            if stop < 0 and not final:
                run.wait = close
                return NEED_MORE
            end = n if stop < 0 else stop + (len(close) if which == 0 else 0)
            run.inside = 0 <= which < 3
            run.add(
                (at, end),
                name=reader.name,
                name_span=reader.name_span,
                id=reader.id,
                fault=Fault("malformed_tag", wrong.offset, wrong.detail),
                arguments=None,
            )
            return end
        fault = reader.fault
        run.add(
            (at, end),
            name=reader.name,
            name_span=reader.name_span,
            id=reader.id,
            args_span=reader.args_span,
            arguments=reader.arguments,
            values=reader.values,
            fault=fault,
        )
        return end


class _Wrong(Exception):
    def __init__(self, offset: int, detail: str) -> None:
        self.offset = offset
        self.detail = detail


class _Call:
    def __init__(self, data: bytes | bytearray, n: int) -> None:
        self.data = data
        self.n = n
        self.name: str | None = None
        self.name_span: Span | None = None
        self.args_span: Span | None = None
        self.id: str | None = None
        self.arguments: dict[str, Any] = {}
        self.values: dict[str, Span] = {}
        self.fault: Fault | None = None

    def head(self, at: int) -> tuple[int, dict[str, str]]:
        end, text = header(self.data, at + len(OPEN), self.n)
        if end < 0:
            if end == -1 and self.n - at < HEADER_LIMIT:
                raise EOFError
            raise _Wrong(at, "the tag is not closed")
        return end + len(SEP), {k: unquoted(v) for k, v in _ATTRIBUTE.findall(text)}

    def expect(self, at: int, *words: bytes) -> bytes:
        for word in words:
            if self.data.startswith(word, at, self.n):
                return word
        if any(word.startswith(bytes(self.data[at : self.n])) for word in words):
            raise EOFError
        raise _Wrong(at, "an argument or the close tag of the call is wanted")

    def read(self, at: int) -> int:
        """Reads the call element at `at`; gives the offset after it."""
        data = self.data
        close = CLOSE + b"call" + SEP
        argument = OPEN + b"argument"
        pos, attributes = self.head(at)
        self.name = attributes.get("tool")
        self.id = attributes.get("index")
        if self.name:
            found = data.find(b'tool="', at, pos)
            self.name_span = (found + 6, data.find(b'"', found + 6, pos))
        else:
            self.fault = Fault("missing_name", at)
        first = pos
        while True:
            pos = skip_space(data, pos, self.n)
            if self.expect(pos, close, argument) == close:
                if self.values:
                    self.args_span = (first, pos)
                return pos + len(close)
            start, attributes = self.head(pos)
            key = attributes.get("key")
            stop = CLOSE + b"argument" + SEP
            end, which = find_any(data, start, self.n, (stop, OPEN + b"argument", OPEN + b"call"))
            if end < 0:
                raise EOFError
            if which:
                raise _Wrong(end, "the value is never closed")
            if key is None:
                raise _Wrong(pos, "the argument has no key")
            if key in self.values and self.fault is None:
                self.fault = Fault("duplicate_key", pos, None, key)
            self.values[key] = (start, end)
            self.arguments[key] = self.typed(key, attributes.get("type", "string"), start, end)
            pos = end + len(stop)

    def typed(self, key: str, kind: str, start: int, end: int) -> Any:
        text = self.data[start:end].decode("utf-8", "replace")
        if kind == "string":
            return text
        body = text.strip().encode("utf-8", "replace")
        code, after, duplicate, _ = json_value(body, 0, len(body))
        if code == 0 and after == len(body) and duplicate < 0:
            return json.loads(body)
        if self.fault is None:
            self.fault = Fault("bad_param_type", start, f"want {kind}, found {text[:60]!r}", key)
        return text

"""Solar Open: messages behind the role, each with the kind of what it holds.

`<|think|>` reasoning `<|end|>`, `<|content|>` text `<|end|>`, and between `<|tool_calls|>` and
`<|calls|>` each call as `<|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{...}`.
"""

from __future__ import annotations

from toolparse.driver.run import Run
from toolparse.grammars.grammar import NEED_MORE
from toolparse.grammars.section_json import SectionJson
from toolparse.scan.find import find_any

NAME = "<|tool_call:name|>"
THINK, CONTENT, END = b"<|think|>", b"<|content|>", b"<|end|>"
ROLE, BEGIN = b"<|begin|>assistant", b"<|begin|>"


def solar_header(header: str) -> tuple[str | None, str | None]:
    """(name, native id) of `ID<|tool_call:name|>NAME`."""
    native, _, name = header.partition(NAME)
    return name.strip() or None, native.strip() or None


class SolarOpen(SectionJson):
    def __init__(self) -> None:
        super().__init__(
            (b"<|tool_calls|>",),
            b"<|calls|>",
            b"<|tool_call:begin|>",
            b"<|tool_call:args|>",
            (b"<|tool_call:end|>",),
            solar_header,
        )
        self.openers = (*self.openers, THINK, CONTENT, END, ROLE, BEGIN)

    def head(self, name: str, index: int) -> str:
        return f"call_{index}{NAME}{name}"

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        for tag in (THINK, CONTENT, END, BEGIN):
            if data.startswith(tag, at, n):
                return True
        return super().begins(data, at, n)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        if data.startswith(THINK, at, n):
            body = at + len(THINK)
            end, which = find_any(data, body, n, (END, BEGIN))
            if end < 0 and not final:
                run.wait = END
                return NEED_MORE
            after = n if end < 0 else end + (len(END) if which == 0 else 0)
            run.markup.append((at, body))
            run.reasoning.append((body, n if end < 0 else end))
            run.markup.append((n if end < 0 else end, after))
            return after
        for tag in (CONTENT, END, ROLE, BEGIN):
            if data.startswith(tag, at, n):
                if tag == BEGIN and not final and ROLE.startswith(bytes(data[at:n])):
                    return NEED_MORE
                run.markup.append((at, at + len(tag)))
                return at + len(tag)
        return super().block(run, at, n, final)

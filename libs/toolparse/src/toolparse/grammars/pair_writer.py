"""The canonical text of the key/value family."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolparse.grammars.grammar import Written
from toolparse.scan.pairs import Shape


class PairWriter:
    """Writes calls as the templates do; `line` is what stands between tags."""

    shape: Shape
    single: bool
    line: str
    python_words: bool
    decode: Callable[[str], str] | None

    def write(self, calls: Sequence[Written]) -> str:
        shape = self.shape
        single = [self.written(name, arguments) for name, arguments in calls]
        if not shape.section_open:
            return self.line.join(single)
        first, last = shape.section_open.decode(), shape.section_close.decode()
        line = self.line
        if self.single:
            return line.join(f"{first}{line}{call}{line}{last}" for call in single)
        return f"{first}{line}{line.join(single)}{line}{last}"

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        """One call."""
        shape = self.shape
        head = f"{shape.call_open.decode()}{name}{shape.name_end.decode()}"
        return f"{head}{self.line}{self.spell(arguments)}{shape.call_close.decode()}"

    def spell(self, arguments: Mapping[str, Any]) -> str:
        return "".join(self.pair(key, value) + self.line for key, value in arguments.items())

    def pair(self, key: str, value: Any) -> str:
        """One argument."""
        shape = self.shape
        text = self.text(value)
        if self.decode is not None:
            text = html.escape(text, quote=False)
        kind = ""
        if shape.attributes:
            kind = f' string="{"true" if isinstance(value, str) else "false"}">'
        gap = self.line if shape.value_open else ""
        frame = "\n" if shape.framed else ""
        return (
            f"{shape.key_open.decode()}{key}{shape.key_end.decode()}{kind}{gap}"
            f"{shape.value_open.decode()}{frame}{text}{frame}{shape.value_close.decode()}"
        )

    def text(self, value: Any) -> str:
        """A value as its text; Qwen's templates print scalars as Python does."""
        if isinstance(value, str):
            return value
        if self.python_words and not isinstance(value, list | dict):
            return str(value)
        return json.dumps(value, ensure_ascii=False)

"""Formats with more than one grammar, told apart by their openers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolparse.driver.run import Run
from toolparse.grammars.grammar import Grammar, Written


class Either(Grammar):
    """The first grammar whose opener stands at a place reads it."""

    def __init__(self, *grammars: Grammar) -> None:
        self.grammars = grammars
        self.owners = [grammar for grammar in grammars for _ in grammar.openers]
        self.openers = tuple(opener for grammar in grammars for opener in grammar.openers)
        super().__init__()

    def owner(self, data: bytes | bytearray, at: int, n: int) -> Grammar:
        for opener, grammar in zip(self.openers, self.owners, strict=True):
            if data.startswith(opener, at, n):
                return grammar
        return self.grammars[0]

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        return self.owner(data, at, n).begins(data, at, n)

    def write(self, calls: Sequence[Written]) -> str:
        return self.grammars[0].write(calls)

    def spell(self, arguments: Mapping[str, Any]) -> str:
        return self.grammars[0].spell(arguments)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        run.choice = self.owner(run.data, at, n)
        return run.choice.block(run, at, n, final)

    def within(self, run: Run, pos: int, n: int, final: bool) -> int:
        assert run.choice is not None
        return run.choice.within(run, pos, n, final)

"""One token sequence of a session, as blocks of context and sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tokendelta._core import Tokens
from tokendelta.sample import SpanKind


@dataclass(slots=True)
class Block:
    """Tokens start..stop of a segment; `logprob` is the place of its first log-prob, or -1."""

    kind: SpanKind
    turn: int
    start: int
    stop: int
    logprob: int = -1
    finish: str = ""

    @property
    def sampled(self) -> bool:
        return self.logprob >= 0


@dataclass(slots=True)
class Segment:
    """A sequence that grows at its end: every prompt of it is a prefix of the next."""

    tokens: Tokens
    blocks: list[Block] = field(default_factory=list)
    message: dict[str, Any] | None = None

    def append_context(self, ids: list[int], kind: SpanKind, turn: int) -> None:
        start = self.tokens.size
        self.tokens.append_context(ids)
        self.blocks.append(Block(kind, turn, start, self.tokens.size))
        self.message = None

    def add_sampled(self, turn: int, count: int, finish: str) -> None:
        """Note the tokens that were appended last as sampled; a turn goes on in its block."""
        tokens = self.tokens
        last = self.blocks[-1]
        if last.sampled and last.turn == turn:
            last.stop = tokens.size
            last.finish = finish
            return
        self.blocks.append(
            Block("content", turn, tokens.size - count, tokens.size, tokens.sampled - count, finish)
        )

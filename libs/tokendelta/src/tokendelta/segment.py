"""One token sequence of a session, as blocks of context and sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokendelta._core import Tokens

BlockKind = Literal["prompt", "sampled", "environment"]
Finish = Literal["stop", "length", "abort"]


@dataclass(slots=True, eq=False)
class Turn:
    """One sampled turn. Segments that share a prefix share its turns, by identity.

    `sampled` counts its tokens. `message` is the parsed turn, if the caller gave it. `side` holds
    (name, offset in the turn, rows) of side streams.
    """

    number: int
    finish: Finish
    sampled: int = 0
    message: dict[str, Any] | None = None
    side: list[tuple[str, int, NDArray[Any]]] | None = None


@dataclass(slots=True, eq=False)
class Block:
    """Tokens start..stop of a segment. A sampled block has its turn, and the place of its first
    log-prob; `number` is the sampled turn that a context block leads to."""

    kind: BlockKind
    number: int
    start: int
    stop: int
    turn: Turn | None = None
    logprob: int = 0


class Mark(NamedTuple):
    """A place in a segment, at a prompt or behind a turn: where a rollback can go to."""

    messages: int
    tokens: int
    sampled: int
    blocks: int


# A message as it was given, or the sampled block that is decoded when the message is needed.
Entry = dict[str, Any] | Block


@dataclass(slots=True, eq=False)
class Segment:
    """A sequence that grows at its end: every prompt of it is a prefix of the next."""

    tokens: Tokens
    number: int
    messages: list[Entry] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def append_context(
        self, ids: list[int] | NDArray[np.int32], kind: BlockKind, number: int, skip: int = 0
    ) -> None:
        """Append ids that were not sampled, but for the first `skip`."""
        start = self.tokens.size
        self.blocks.append(Block(kind, number, start, self.tokens.append_context(ids, skip)))

    def mark(self) -> None:
        """Note the state at a prompt."""
        tokens = self.tokens
        # Half the cost of Mark(...), in the one place that runs every turn.
        state = (len(self.messages), tokens.size, tokens.sampled, len(self.blocks))
        self.marks.append(tuple.__new__(Mark, state))

    def add_sampled(self, turn: Turn, count: int) -> None:
        """Note the tokens that were appended last as sampled; a turn goes on in its block."""
        size, last = self.tokens.size, self.blocks[-1]
        turn.sampled += count
        if last.turn is turn:
            last.stop = size
            return
        place = self.tokens.sampled - count
        block = Block("sampled", turn.number, size - count, size, turn, place)
        self.blocks.append(block)
        self.messages.append(block)

    def drop_last(self) -> None:
        """Take back the last token, which was sampled. Segments that share its turn keep it."""
        tokens, block = self.tokens, self.blocks[-1]
        tokens.truncate(tokens.size - 1, tokens.sampled - 1)
        self.blocks[-1] = self.messages[-1] = replace(block, stop=block.stop - 1)

    def rewind(self, mark: Mark) -> None:
        """Forget what was appended behind a place. Views of it stay as they were."""
        if self.tokens.size == mark.tokens:
            return
        self.tokens.truncate(mark.tokens, mark.sampled)
        del self.messages[mark.messages :], self.blocks[mark.blocks :]
        while self.marks and self.marks[-1].tokens > mark.tokens:
            self.marks.pop()

    def tip(self) -> Mark:
        """The place behind the last token."""
        tokens = self.tokens
        return Mark(len(self.messages), tokens.size, tokens.sampled, len(self.blocks))

    def behind(self, index: int, messages: int) -> Mark:
        """The place behind a sampled block, at which so many messages stand."""
        block = self.blocks[index]
        return Mark(messages, block.stop, block.logprob + block.stop - block.start, index + 1)

    def branch(self, mark: Mark, number: int) -> Segment:
        """A new segment with a copy of the tokens up to a prompt, and the same turns."""
        other = Segment(self.tokens.branch(mark.tokens, mark.sampled), number)
        other.messages = self.messages[: mark.messages]
        other.blocks = self.blocks[: mark.blocks]
        other.marks = [seen for seen in self.marks if seen.tokens <= mark.tokens]
        return other

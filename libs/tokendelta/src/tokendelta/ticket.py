"""One turn that a client asked for, from its prompt to its delivery."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tokendelta.echo import Said
from tokendelta.errors import StateError
from tokendelta.sample import FloatArray, IntArray
from tokendelta.segment import Segment, Turn

if TYPE_CHECKING:
    from tokendelta.history import Node
    from tokendelta.profile import Reasoning
    from tokendelta.rendering import Tool

Decision = Literal["extend", "fork", "new", "replay"]
Cause = Literal[
    "",
    "turn goes on elsewhere",
    "asked again",
    "first request",
    "no turn agrees",
    "template rewrites history",
    "not delivered",
    "marked as retry",
]
Status = Literal["open", "sampled", "delivered", "undelivered", "abandoned"]


@dataclass(slots=True, eq=False)
class Slot:
    """What the tree knows of one turn; tickets point at it.

    node      the last message of the request that asked for it.
    base      the turn whose continuation its prompt is, if the prompt is one.
    prompt    tokens of the segment before the turn; -1 once they were taken back.
    lost      why the connection of the request is gone while the turn is open.
    proven    a later history held the turn, so it was delivered, whatever the caller says.
    served    how often it was given out again.
    tools     that it could call.
    """

    number: int
    node: Node
    params: Hashable
    decision: Decision
    cause: Cause
    segment: Segment
    base: Slot | None
    prompt: int
    reasoned: Reasoning
    status: Status = "open"
    reason: str = ""
    lost: str = ""
    proven: bool = False
    served: int = 0
    constrained: bool = False
    turn: Turn | None = None
    block: int = -1
    messages: int = -1
    message: dict[str, Any] = field(default_factory=dict)
    said: Said | None = None
    stops: tuple[str, ...] = ()
    tools: Sequence[Tool] | None = None


@dataclass(frozen=True, slots=True)
class Ticket:
    """The answer to `Tree.prepare`: where the request stands, and what to do with it.

    decision  extend, fork, new or replay, as `Tree` has it; `cause` says why.
    agreed    messages of the history that the record holds.

    Sample from `prompt` and commit, unless the decision is `replay`: then the turn is another
    request's, and `status` says whether it is still sampled (`open`) or can be sent again.
    """

    slot: Slot = field(repr=False)
    decision: Decision
    cause: Cause
    agreed: int

    @property
    def turn(self) -> int:
        """Number of the turn, in the order in which turns were asked for."""
        return self.slot.number

    @property
    def status(self) -> Status:
        """open, sampled, delivered, undelivered or abandoned."""
        return self.slot.status

    @property
    def prompt(self) -> IntArray:
        """The ids to sample from: read-only int32[n], not copied.

        Raises StateError for a ticket that was abandoned, once its prompt is taken back.
        """
        if self.slot.prompt < 0:
            raise StateError(f"turn {self.turn} was abandoned, and another went on in its place")
        return self.slot.segment.tokens.view(0, self.slot.prompt)

    @property
    def ids(self) -> IntArray:
        """The sampled ids, as the record holds them: read-only int32[n]."""
        block = self.slot.segment.blocks[_committed(self.slot)]
        return self.slot.segment.tokens.view(block.start, block.stop)

    @property
    def logprobs(self) -> FloatArray:
        """Their log-probs: read-only float32[n]."""
        block = self.slot.segment.blocks[_committed(self.slot)]
        tokens = self.slot.segment.tokens
        return tokens.logprob_view(block.logprob, block.logprob + block.stop - block.start)

    @property
    def finish(self) -> str:
        """How sampling ended: stop, length or abort."""
        _committed(self.slot)
        return self.slot.turn.finish if self.slot.turn is not None else ""

    @property
    def message(self) -> dict[str, Any]:
        """The turn as it was given to `commit` for the client."""
        _committed(self.slot)
        return self.slot.message


def _committed(slot: Slot) -> int:
    if slot.block < 0:
        raise StateError(f"turn {slot.number} is {slot.status}: nothing was committed to it")
    return slot.block


def to_replay(slots: Sequence[Slot], params: Hashable, retry: bool) -> Slot | None:
    """The turn that the same request is answered with again, or None if it asks for another.

    It is one whose answer did not arrive, or, if the request is marked as a retry, any. Of several
    the one that is not delivered and was given out least often is taken, so that parallel requests
    which are all sent again get one turn each.
    """
    missed = [s for s in slots if s.params == params and (s.status == "undelivered" or s.lost)]
    if not missed and retry:
        missed = [s for s in slots if s.params == params and s.status != "abandoned"]

    def order(slot: Slot) -> tuple[bool, int, int]:
        return slot.status == "delivered", slot.served, slot.number

    return min(missed, key=order, default=None)

"""A rollout's turns on their way: what they may take, who waits for them, what is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import tokendelta

from turnwise.conversation.history import are_long, reading
from turnwise.conversation.recorded import places_of
from turnwise.gateway.requests import Answer, Head, Request
from turnwise.rounds import in_thread

if TYPE_CHECKING:
    from turnwise.gateway.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one rollout may take, and what of it is trained.

    Attributes:
        max_turns: Turns that are sampled; a request for another one is refused.
        max_open: Requests at the same time.
        turn_deadline_s: Seconds for each turn.
        grace_s: Seconds that sampling goes on after its client left.
        constrained: Turns sampled under a grammar are masked, or trained as any other.
    """

    max_turns: int = 256
    max_open: int = 8
    turn_deadline_s: float = 600.0
    grace_s: float = 10.0
    constrained: Literal["mask", "train"] = "mask"


@dataclass(slots=True)
class Sampling:
    """A turn under way: how its answer begins, and how many requests wait for it."""

    task: asyncio.Task[Answer]
    head: Head
    waiting: int = 0
    leaving: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class Given:
    """An answer on its way to a client; say `delivered` or `lost` once it is known."""

    record: Record
    ticket: tokendelta.Ticket
    answer: Answer

    def delivered(self) -> None:
        """The client has all of it."""
        self.record.tree.delivered(self.ticket)

    def lost(self, reason: str) -> None:
        """The client left before it had all of it."""
        self.record.tree.undelivered(self.ticket, reason)


@dataclass(slots=True)
class Told:
    """A turn for the transcript."""

    prompt: Sequence[dict[str, Any]]
    answer: Answer = field(repr=False)


async def prepared(
    tree: tokendelta.Tree, request: Request, retry: bool = False
) -> tokendelta.Ticket | tokendelta.Overflow:
    """What the tree says of a request; a long history is encoded beside the event loop. Nothing
    else may be done with the tree meanwhile."""
    found: list[tokendelta.Ticket | tokendelta.Overflow] = []

    def prepare() -> None:
        found.append(
            tree.prepare(request.messages, tools=request.tools, params=request.key, retry=retry)
        )

    if not are_long(request.messages):
        prepare()
        return found[0]
    try:
        await in_thread(prepare)
    except asyncio.CancelledError:
        for one in found:
            if isinstance(one, tokendelta.Ticket) and one.decision != "replay":
                tree.abandon(one, "the client left")
        raise
    return found[0]


def transcript_of(
    told: Mapping[int, Told], samples: Sequence[tokendelta.Sample]
) -> list[dict[str, Any]]:
    """Messages in the order of turns, each with its author and where it stands in the samples."""
    places = places_of(samples)
    rows = []
    for number, one in sorted(told.items()):
        said = {
            **one.answer.message,
            "text": one.answer.turn.text,
            "finish": one.answer.turn.finish,
            "author": "policy",
            **reading(one.answer.turn),
        }
        for message in (*(_shown(shown) for shown in one.prompt), said):
            found = places.get((number, message["author"] == "policy"))
            place = {"segment": found and found[0], "span": found and found[1:]}
            rows.append({**message, "turn": number, **place})
    return rows


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in message.items() if key != "handle"}
    return {**kept, "author": _author(message)}


def _author(message: dict[str, Any]) -> str:
    if message["role"] == "tool":
        return f"tool:{message.get('name', '')}"
    role = str(message["role"])
    return {"system": "prompt", "assistant": "client"}.get(role, role)

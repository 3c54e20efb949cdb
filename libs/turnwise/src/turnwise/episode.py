"""An episode, how it ended, and who is to blame.

| ending              | score                  | in its group? |
|---------------------|------------------------|---------------|
| finished            | the method's reward    | yes           |
| stopped(limit)      | by the method's rule   | yes           |
| lost(boundary)      | none                   | no            |
| cancelled           | none                   | no            |

Only the policy earns a reward: what an engine, a user simulator, a judge, a tool server, a
sandbox or a bug of the environment does never becomes a score. Code that crosses one of these
boundaries wraps the call in `crossing(boundary)`; the episode loop turns the resulting
`BoundaryError` into `Ending.lost`.
"""

from __future__ import annotations

import asyncio
import math
import numbers
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import tokendelta

from turnwise.inflight import REGISTRY, waiting
from turnwise.printable import printable


class Boundary(StrEnum):
    """Where an episode can be lost through no fault of the policy."""

    ENGINE = "engine"
    USER = "user"
    TOOL_SERVER = "tool_server"
    JUDGE = "judge"
    SANDBOX = "sandbox"
    ENVIRONMENT = "environment"
    HARNESS = "harness"


class Limit(StrEnum):
    """A bound that the policy itself ran into."""

    TURNS = "turns"
    TOKENS = "tokens"
    CONTEXT = "context"
    FORMAT = "format"


class BoundaryError(Exception):
    """A failure beyond the policy's control, at `boundary`.

    What the other side said may stand in the message: it is made printable.

    Attributes:
        boundary: What failed.
        conversation: The `turnwise.conversation.Conversation` that it broke off, if any: what was
            said until then still belongs to the lost episode's trace.
    """

    def __init__(self, boundary: Boundary, message: str) -> None:
        super().__init__(printable(message))
        self.boundary = boundary
        self.conversation: Any = None


class DeadlineExceeded(BoundaryError):
    """The other side of `boundary` did not answer in time."""


@asynccontextmanager
async def crossing(boundary: Boundary, *, deadline_s: float | None = None) -> AsyncIterator[None]:
    """Attributes every failure inside the block to `boundary`, and bounds its time.

    Meanwhile the episode is seen to wait for it (`turnwise.inflight`).

    Raises:
        DeadlineExceeded: after `deadline_s` seconds.
        BoundaryError: for any other exception, which becomes its cause. A `BoundaryError` from
            inside keeps its own boundary; cancellation passes through.
    """
    try:
        with waiting(boundary):
            async with asyncio.timeout(deadline_s) as scope:
                yield
        REGISTRY.answered[boundary] = REGISTRY.clock()
    except BoundaryError:
        raise
    except TimeoutError as error:
        if scope.expired():
            raise DeadlineExceeded(boundary, f"no answer within {deadline_s:g} s") from error
        raise BoundaryError(boundary, f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise BoundaryError(boundary, f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Ending:
    """How an episode ended. Build one with `finished`, `stopped`, `lost` or `cancelled`."""

    kind: str
    limit: Limit | None = None
    boundary: Boundary | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        expected = {
            "finished": (False, False),
            "stopped": (True, False),
            "lost": (False, True),
            "cancelled": (False, False),
        }.get(self.kind)
        if expected is None:
            raise ValueError(f"unknown ending {self.kind!r}")
        if expected != (self.limit is not None, self.boundary is not None):
            raise ValueError(f"ending {self.kind!r} with limit={self.limit} {self.boundary=}")

    @classmethod
    def finished(cls) -> Ending:
        return cls("finished")

    @classmethod
    def stopped(cls, limit: Limit) -> Ending:
        return cls("stopped", limit=limit)

    @classmethod
    def lost(cls, error: BoundaryError) -> Ending:
        kind = "deadline: " if isinstance(error, DeadlineExceeded) else ""
        return cls("lost", boundary=error.boundary, error=f"{kind}{error}")

    @classmethod
    def cancelled(cls) -> Ending:
        return cls("cancelled")

    @property
    def by_policy(self) -> bool:
        """Whether the episode carries a score and belongs to its group."""
        return self.kind in ("finished", "stopped")

    @property
    def label(self) -> str:
        """`finished`, `stopped:turns`, `lost:user`, `cancelled`: the key in metrics."""
        detail = self.limit or self.boundary
        return f"{self.kind}:{detail}" if detail else self.kind


@dataclass(frozen=True, slots=True)
class Episode:
    """What one rollout left behind.

    Attributes:
        rollout_id: Names the rollout; every segment of the episode shares it.
        group_id: Names the prompt whose rollouts are compared with each other.
        task_id: For people: `retail/train/12`.
        segments: Token sequences with loss mask and log-probs; empty if none was sampled.
        ending: See the module's table.
        score: The method's reward; None exactly where the ending is not the policy's.
        transcript: OpenAI-style messages in order, for the trace.
        metrics: Numbers of this episode (turns, tool calls, parse errors by kind, ...).
        info: JSON-able facts for the trace (reward parts, dropped calls, the user's name, ...).
        wall_s: Seconds from start to end.
        credit: What each segment earns beside the score, in their order: it is compared with that
            of the group's segments at the same place (`turnwise.group.credit_advantages`). None at
            a segment that earns the score alone and is compared with no other. Empty where none
            earns more, and where there is no score.
    """

    rollout_id: str
    group_id: str
    task_id: str
    segments: tuple[tokendelta.Sample, ...]
    ending: Ending
    score: float | None
    transcript: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    credit: tuple[float | None, ...] = ()

    def __post_init__(self) -> None:
        if self.score is not None:
            object.__setattr__(self, "score", as_score(self.score))
        if (self.score is not None) != self.ending.by_policy:
            raise ValueError(f"score {self.score!r} with ending {self.ending.label!r}")
        if self.credit:
            if self.score is None or len(self.credit) != len(self.segments):
                raise ValueError(
                    f"credit for {len(self.credit)} segments, found {len(self.segments)} and score"
                    f" {self.score!r}"
                )
            credit = tuple(None if one is None else as_score(one) for one in self.credit)
            object.__setattr__(self, "credit", credit)


def as_score(value: object) -> float:
    """A reward as a float: the one rule, before it enters a group.

    Numbers of Python and NumPy count; truth values, text and what is not finite do not.

    Raises:
        ValueError: saying what was found.
    """
    # A NumPy bool is no numbers.Real, a Python one is.
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise ValueError(f"a score must be a number, found {type(value).__name__} {value!r:.80}")
    try:
        score = float(value)
    except OverflowError:
        raise ValueError("a score must be finite, found a number beyond every float") from None
    if not math.isfinite(score):
        raise ValueError(f"a score must be finite, found {score}")
    return score

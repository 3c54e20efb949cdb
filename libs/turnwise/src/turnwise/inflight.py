"""What every episode in flight waits for and since when, read from any thread.

    with playing(rollout.rollout_id, rollout.group_id, rollout.task_id) as entry:
        with waiting("engine"):
            ...

`turnwise.method.play` enters each episode, `turnwise.episode.crossing` each wait for what is not
the policy, `turnwise.conversation` the policy's turn, `turnwise.limiter` its queue. A wait is noted
where it begins and taken away where it ends: a list grows and shrinks by one, no lock is taken, and
nothing else is done. Whoever asks copies the lists; it may then see a wait that has just ended.

Tasks that an episode starts inherit its entry, so their waits are its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from turnwise.limiter import Limiter
    from turnwise.spend import Spend

KEPT_TIMES = 512
"""Episodes whose times are remembered for their median."""


class Wait:
    """One wait, which lasts as long as its block; `since` is of the monotonic clock, in seconds."""

    __slots__ = ("_entry", "since", "what")

    def __init__(self, what: str, entry: InFlight | None) -> None:
        self.what, self._entry = what, entry
        self.since = 0.0

    def __enter__(self) -> None:
        if self._entry is not None:
            self.since = REGISTRY.clock()
            self._entry.waits.append(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._entry is not None:
            waits = self._entry.waits
            if waits[-1] is self:
                waits.pop()
            else:
                waits.remove(self)


class InFlight:
    """An episode under way.

    Attributes:
        since: When it began, by the monotonic clock.
        waits: Those that it is in, the outermost first.
        task: That plays it; None outside of an event loop.
    """

    __slots__ = ("group_id", "rollout_id", "since", "task", "task_id", "waits")

    def __init__(self, rollout_id: str, group_id: str, task_id: str, since: float) -> None:
        self.rollout_id, self.group_id, self.task_id = rollout_id, group_id, task_id
        self.since = since
        self.waits: list[Wait] = []
        self.task: asyncio.Task[object] | None = None
        try:
            self.task = asyncio.current_task()
        except RuntimeError:
            pass


@dataclass(frozen=True, slots=True)
class LastError:
    """The last failure at a boundary: what it said, when (monotonic), and how many there were."""

    text: str
    at: float
    count: int


@dataclass(frozen=True, slots=True)
class Service:
    """Whom episodes ask beside the policy.

    Attributes:
        name: `user at http://...`, `judge`.
        role: Its boundary, by which a request names it.
        limiter: Its queue.
        spend: What it has cost; None where nothing is counted.
    """

    name: str
    role: str
    limiter: Limiter
    spend: Spend | None


class Registry:
    """The episodes of this process, whichever event loop plays them.

    Attributes:
        settled: Episodes that ended, cancelled ones included.
        last_settled: When the last of them did, by the clock; when the first began before one did.
        busy_since: Since when at least one is under way; stands still where none is.
        errors: By boundary.
        answered: When a wait at a boundary last ended well, by boundary.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._entries: dict[int, InFlight] = {}
        self._owners: WeakSet[object] = WeakSet()
        self.clear()

    def clear(self) -> None:
        """Forgets what has ended, for a run that begins."""
        self.settled = 0
        self.last_settled = self.busy_since = self.clock()
        self.errors: dict[str, LastError] = {}
        self.answered: dict[str, float] = {}
        self._times: deque[float] = deque(maxlen=KEPT_TIMES)

    def begin(self, rollout_id: str, group_id: str, task_id: str) -> InFlight:
        now = self.clock()
        if not self._entries:
            self.busy_since = now
        entry = InFlight(rollout_id, group_id, task_id, now)
        self._entries[id(entry)] = entry
        return entry

    def end(self, entry: InFlight) -> None:
        self.last_settled = self.clock()
        self.settled += 1
        self._times.append(self.last_settled - entry.since)
        self._entries.pop(id(entry), None)

    def entries(self) -> list[InFlight]:
        """Those under way, the oldest first."""
        return list(self._entries.values())

    def times(self) -> list[float]:
        """Seconds of the last episodes that ended."""
        return list(self._times)

    def failed(self, boundary: str, text: str) -> None:
        """Notes a failure, also one that is tried again."""
        before = self.errors.get(boundary)
        count = 1 if before is None else before.count + 1
        self.errors[boundary] = LastError(text, self.clock(), count)

    def add_service(self, owner: object) -> None:
        """Keeps sight of what has a `service()`, as long as somebody else keeps it."""
        self._owners.add(owner)

    def services(self) -> list[Service]:
        """Of all owners, by name."""
        found = [owner.service() for owner in list(self._owners)]  # type: ignore[attr-defined]
        return sorted(found, key=lambda one: one.name)


REGISTRY = Registry()
_playing: ContextVar[InFlight | None] = ContextVar("playing", default=None)


@contextmanager
def playing(rollout_id: str, group_id: str, task_id: str) -> Iterator[InFlight]:
    """Enters an episode for the block; waits inside of it are its own."""
    entry = REGISTRY.begin(rollout_id, group_id, task_id)
    before = _playing.set(entry)
    try:
        yield entry
    finally:
        _playing.reset(before)
        REGISTRY.end(entry)


def waiting(what: str) -> Wait:
    """Notes that the episode of the caller, if it is of one, waits for `what` in the block."""
    return Wait(what, _playing.get())

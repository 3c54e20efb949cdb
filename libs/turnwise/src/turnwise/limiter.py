"""How fast an endpoint may be asked, by all episodes together.

1. No span of 60 s holds more than the given requests and tokens: what was sent is kept for 60 s.
   Tokens are estimated before a request and corrected to what it used.
2. At most `concurrency` requests are under way. A 429 halves that number, once for all requests
   that were then under way; each round of successes adds one, up to what was given (additive
   increase, multiplicative decrease, as TCP's congestion avoidance: RFC 5681).
3. A 429 that says how long to wait stops every request for that long, 60 s at most.
4. Who waits longest goes first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from turnwise.inflight import waiting

WINDOW_S = 60.0
_ROUNDING_S = 1e-6


class _Sent:
    """One entry of a window; the amount is corrected once it is known."""

    __slots__ = ("time", "amount")

    def __init__(self, time: float, amount: float) -> None:
        self.time = time
        self.amount = amount


class _Window:
    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._sent: deque[_Sent] = deque()
        self._total = 0.0

    def wait_s(self, now: float, amount: float) -> float:
        """Seconds until `amount` more fits; more than the limit fits into an empty window."""
        if self._limit is None:
            return 0.0
        while self._sent and self._sent[0].time <= now - WINDOW_S:
            self._total -= self._sent.popleft().amount
        if not self._sent:
            self._total = 0.0
            return 0.0
        excess = self._total + amount - self._limit
        for sent in self._sent:
            if excess <= 0:
                return 0.0
            excess -= sent.amount
            if excess <= 0 or sent is self._sent[-1]:
                return sent.time + WINDOW_S - now + _ROUNDING_S
        raise AssertionError("unreachable")

    def add(self, now: float, amount: float) -> _Sent:
        sent = _Sent(now, amount)
        if self._limit is not None:
            self._sent.append(sent)
            self._total += amount
        return sent

    def correct(self, sent: _Sent, amount: float) -> None:
        if self._sent and sent.time >= self._sent[0].time:
            self._total += amount - sent.amount
            sent.amount = amount


@dataclass(slots=True)
class Slot:
    """The right to send one request. Say how it went with `succeeded` or `rejected`, or neither."""

    _limiter: Limiter
    _tokens: _Sent
    _round: int

    def succeeded(self, tokens: int) -> None:
        """The endpoint did the work, which took `tokens` read and written ones."""
        self._limiter._succeeded(self, tokens)

    def rejected(self, wait_s: float | None) -> None:
        """The endpoint is asked too fast (429); it says to wait `wait_s` seconds, if anything."""
        self._limiter._rejected(self, wait_s)


class Limiter:
    """See the module. One event loop at a time.

    Attributes:
        concurrency: Requests that may be under way now.
        running: Requests under way.
        waiting: Requests that wait for a slot.
        rejections: 429s so far.
    """

    def __init__(
        self,
        *,
        concurrency: int = 64,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
    ) -> None:
        """Raises ValueError if a limit is not greater than 0."""
        for name, value in (
            ("concurrency", concurrency),
            ("requests_per_minute", requests_per_minute),
            ("tokens_per_minute", tokens_per_minute),
        ):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be greater than 0, found {value}")
        self._max_concurrency = concurrency
        self._concurrency = float(concurrency)
        self._requests = _Window(requests_per_minute)
        self._tokens = _Window(tokens_per_minute)
        self._queue: deque[tuple[asyncio.Future[Slot], float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        self._round = 0
        self.running = 0
        self.rejections = 0

    @property
    def concurrency(self) -> int:
        return int(self._concurrency)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def slot(self, tokens: float = 0.0) -> AsyncIterator[Slot]:
        """Waits for the right to send a request of about `tokens` tokens, and holds it."""
        with waiting("limiter"):
            slot = await self._acquire(tokens)
        try:
            yield slot
        finally:
            self.running -= 1
            self._admit()

    async def _acquire(self, tokens: float) -> Slot:
        granted: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        entry = (granted, tokens)
        self._queue.append(entry)
        try:
            self._admit()
            return await granted
        except BaseException:
            if granted.done() and not granted.cancelled():
                self.running -= 1
            elif entry in self._queue:
                self._queue.remove(entry)
            self._admit()
            raise

    def _admit(self) -> None:
        """Grants slots in order until a limit holds; a limit of time sets a timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self.running < self.concurrency:
            granted, tokens = self._queue[0]
            loop = granted.get_loop()
            now = loop.time()
            wait_s = max(
                self._not_before - now,
                self._requests.wait_s(now, 1.0),
                self._tokens.wait_s(now, tokens),
            )
            if wait_s > 0:
                self._timer = loop.call_later(wait_s, self._admit)
                return
            self._queue.popleft()
            if granted.done():
                continue
            self._requests.add(now, 1.0)
            self.running += 1
            granted.set_result(Slot(self, self._tokens.add(now, tokens), self._round))

    def _succeeded(self, slot: Slot, tokens: int) -> None:
        self._tokens.correct(slot._tokens, float(tokens))
        self._concurrency = min(
            float(self._max_concurrency), self._concurrency + 1.0 / self._concurrency
        )

    def _rejected(self, slot: Slot, wait_s: float | None) -> None:
        self.rejections += 1
        self._tokens.correct(slot._tokens, 0.0)
        if slot._round == self._round:
            self._round += 1
            self._concurrency = max(1.0, self._concurrency / 2)
        if wait_s is not None:
            now = asyncio.get_running_loop().time()
            self._not_before = max(self._not_before, now + min(wait_s, WINDOW_S))

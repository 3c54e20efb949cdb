"""How long the event loop was held up.

    async with LagMonitor() as lag:
        ...
    lag.p50_s, lag.max_s

A timer is due every few milliseconds; how late it runs is how long something blocked the loop.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import numpy as np


class LagMonitor:
    """Measures between entering and leaving the block.

    Args:
        interval_s: Seconds between two looks; blocks much shorter than this are often missed.
    """

    def __init__(self, interval_s: float = 0.01) -> None:
        self._interval_s = interval_s
        self._lags_s: list[float] = []
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None

    @property
    def samples(self) -> int:
        """Looks taken."""
        return len(self._lags_s)

    @property
    def p50_s(self) -> float:
        """Median lag in seconds; 0 without a look."""
        return float(np.median(self._lags_s)) if self._lags_s else 0.0

    @property
    def max_s(self) -> float:
        """Largest lag in seconds; 0 without a look."""
        return max(self._lags_s, default=0.0)

    def split(self) -> LagMonitor:
        """A monitor with the looks so far; this one goes on without them."""
        past = LagMonitor(self._interval_s)
        past._lags_s, self._lags_s = self._lags_s, past._lags_s
        return past

    async def __aenter__(self) -> LagMonitor:
        self._schedule()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._handle is not None
        self._handle.cancel()
        late = asyncio.get_running_loop().time() - self._due
        if late > 0:
            self._lags_s.append(late)

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._interval_s
        self._handle = loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._lags_s.append(max(0.0, asyncio.get_running_loop().time() - self._due))
        self._schedule()

"""Concurrent queries as one search: what came while a search ran is the next one.

There is no waiting time: a query that finds nothing running is searched at once, alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

QueryT = TypeVar("QueryT")
HitsT = TypeVar("HitsT")


class QueueFull(Exception):
    """There is no room for these queries now."""


class Batcher(Generic[QueryT, HitsT]):
    """One search at a time; `run` does them.

    Attributes:
        searches: So far.
    """

    def __init__(
        self,
        search: Callable[[list[QueryT]], Awaitable[Sequence[HitsT | Exception]]],
        *,
        max_queue: int,
        max_batch: int,
    ) -> None:
        """
        Args:
            search: One result a query, or what it failed with. What it raises fails them all.
        """
        self._search = search
        self._max_queue = max_queue
        self._max_batch = max_batch
        self._queue: deque[tuple[QueryT, asyncio.Future[HitsT]]] = deque()
        self._arrived = asyncio.Event()
        self.searches = 0

    @property
    def waiting(self) -> int:
        """Queries that no search has taken yet."""
        return len(self._queue)

    async def submit(self, queries: Sequence[QueryT]) -> list[HitsT]:
        """The results of `queries`, in order. When cancelled, those that still wait are taken out.

        Raises:
            QueueFull: at once, for all of them.
            Exception: what the search of one of them failed with.
        """
        if len(self._queue) + len(queries) > self._max_queue:
            raise QueueFull(f"{len(self._queue)} queries wait, {self._max_queue} may")
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[HitsT]] = [loop.create_future() for _ in queries]
        self._queue.extend(zip(queries, futures, strict=True))
        self._arrived.set()
        try:
            return await asyncio.gather(*futures)
        finally:
            if not all(future.done() and not future.cancelled() for future in futures):
                for future in futures:
                    future.cancel()
                live = [entry for entry in self._queue if not entry[1].cancelled()]
                self._queue = deque(live)

    async def run(self) -> None:
        """Searches until cancelled."""
        while True:
            await self._arrived.wait()
            batch = [self._queue.popleft() for _ in range(min(self._max_batch, len(self._queue)))]
            if not self._queue:
                self._arrived.clear()
            if not batch:
                continue
            self.searches += 1
            try:
                results = await self._search([query for query, _ in batch])
            except Exception as error:
                results = [error] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

"""Work of many coroutines at once, a piece in each round of the event loop.

When 256 turns come back together, 256 coroutines go on in one round: they read what was sampled,
step their environments and render the next prompts, and until the last of them is done no timer
runs and no answer is read. A coroutine that awaits `own_round` before such a piece is the only one
of its round; the others wait in the order of their arrival, and everything else runs in between.
The loop is then late by one piece, not by all of them.

No decision looks at a clock: the same coroutines go on in the same order in every run.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

ResultT = TypeVar("ResultT")

_FULL_EVERY = 100
"""Collections of the middle generation; Python's own number is 10."""


class _Rounds:
    """Of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._holder: asyncio.Task[object] | None = None
        self.taken = False

    async def wait(self) -> None:
        caller = asyncio.current_task()
        if not self.taken:
            self._take()
        elif self._holder is not caller:
            future = self._loop.create_future()
            self._waiting.append(future)
            await future
        self._holder = caller

    def _take(self) -> None:
        self.taken = True
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.taken, self._holder = False, None
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                self._take()
                return


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Rounds] = WeakKeyDictionary()


def _rounds() -> _Rounds:
    loop = asyncio.get_running_loop()
    if loop not in _loops:
        _loops[loop] = _Rounds(loop)
    return _loops[loop]


async def own_round() -> None:
    """Returns in a round of the event loop in which no other caller goes on."""
    await _rounds().wait()


async def in_thread(work: Callable[[], ResultT]) -> ResultT:
    """What `work` gives, done in a thread beside the loop.

    A cancellation is raised when it is done, since nothing ends a thread: what it writes to is not
    read before.
    """
    done = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise


def keep_what_is_loaded() -> None:
    """Says that what is in memory now stays until the process ends.

    A full collection of garbage stops the loop while it walks through every object; models,
    tokenizers and modules are most of them (0.2 s in the process of slime's hooks). The rest are
    episodes under way, of which nothing is garbage before they end: full collections come when
    there are 700,000 objects more, not 70,000.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_EVERY)


def rounds_are_taken() -> bool:
    """Whether somebody has this round, or waits for one."""
    return _rounds().taken

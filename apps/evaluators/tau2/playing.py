"""For tests: a policy that does what the reference of its task does, or nothing; an endpoint."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from taubench.tau2 import task_by_id
from turnwise.engine import Completion, SamplingParams
from turnwise.episode import Boundary, BoundaryError
from turnwise.testing import byte_tokenizer, call, encode
from turnwise.testing.servers import FakeChat


class ReferenceEngine:
    """Plays solo telecom: the reference, then `done`. Keeps the engine contract.

    Attributes:
        idle: Tells by task and trial whether it calls `done` at once.
        broken: Rollouts at which it fails.
        played: Rollouts by the number of their turns.
    """

    def __init__(self, idle: Callable[[str, int], bool] = lambda task, trial: False) -> None:
        self.idle = idle
        self.broken: set[str] = set()
        self.played: Counter[str] = Counter()

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        if session_id in self.broken:
            raise BoundaryError(Boundary.ENGINE, "gone")
        name, _, trial = session_id.rpartition("#")
        place = self.played[session_id]
        self.played[session_id] += 1
        turns = [call("done")]
        if not self.idle(name, int(trial)):
            criteria = task_by_id("telecom", name.split("/", 2)[2]).criteria
            assert criteria is not None
            steps = [call(one.name, **one.arguments) for one in criteria.actions or ()]
            turns = [*steps, *turns]
        ids = np.array([*encode(turns[place]), byte_tokenizer().eos_token_id], dtype=np.int32)
        return Completion(ids, np.zeros(len(ids), dtype=np.float32), "stop")

    async def release(self, session_id: str) -> None:
        return None

    async def close(self) -> None:
        return None


@contextmanager
def serving(say: Callable[[Any], str]) -> Iterator[str]:
    """A fake endpoint by its URL, in a thread of its own: commands have an event loop of theirs."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    server = FakeChat(say)

    async def start() -> None:
        await server.__aenter__()
        ready.set()

    def serve() -> None:
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(30)
    try:
        yield f"{server.url}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

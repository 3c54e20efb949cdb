"""A policy that does what the reference of its task does, or nothing; for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from taubench.tau2 import task_by_id
from turnwise.engine import Completion, SamplingParams
from turnwise.episode import Boundary, BoundaryError
from turnwise.testing import byte_tokenizer, call, encode


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

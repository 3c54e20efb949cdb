"""An engine that says what it is told: for tests and dry runs.

engine = ScriptedEngine([reply(ids), reply(other, delay_s=0.1), fail("gone")])
engine = ScriptedEngine(lambda prompt_ids: reply(answer_to(prompt_ids)))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.engine import Completion, Finish, SamplingParams
from turnwise.episode import Boundary, BoundaryError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one call of `generate` does; made by `reply` and `fail`.

    Attributes:
        ids: The tokens of the turn.
        logprobs: One per token.
        finish: None finds out: `stop` if the last token is a stop token of the request, else
            `length`.
        delay_s: Seconds before the answer.
        error: Raised as a `BoundaryError` at `Boundary.ENGINE` instead of an answer.
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish: Finish | None = None
    delay_s: float = 0.0
    error: str | None = None


def reply(
    ids: Sequence[int],
    *,
    logprobs: Sequence[float] | None = None,
    finish: Finish | None = None,
    delay_s: float = 0.0,
) -> Reply:
    """An answer of `ids`; every log-prob is -1 where none are given."""
    given = tuple(logprobs) if logprobs is not None else (-1.0,) * len(ids)
    if len(given) != len(ids):
        raise ValueError(f"{len(given)} log-probs for {len(ids)} ids")
    return Reply(ids=tuple(ids), logprobs=given, finish=finish, delay_s=delay_s)


def fail(message: str, *, delay_s: float = 0.0) -> Reply:
    """A failure of the engine."""
    return Reply(error=message, delay_s=delay_s)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `generate`, as it came."""

    session_id: str
    prompt_ids: NDArray[np.int32]
    params: SamplingParams


class ScriptedEngine:
    """Answers from a list, in the order of the calls, or by a function of the prompt.

    Attributes:
        calls: Every call of `generate`, in order.
        released: Session ids, in the order of their release.
        takes_grammar: Whether it says that it serves a `json_schema`; it says its script anyway.
    """

    def __init__(self, script: Iterable[Reply] | Callable[[NDArray[np.int32]], Reply]) -> None:
        self._replies = None if callable(script) else iter(script)
        self._function = script if callable(script) else None
        self._closed = asyncio.Event()
        self.calls: list[Call] = []
        self.released: list[str] = []
        self.takes_grammar = False

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        """The next reply, cut to `max_new_tokens`.

        Raises:
            BoundaryError: at `Boundary.ENGINE`: what was scripted, an empty script, or a closed
                engine.
        """
        if self._closed.is_set():
            raise BoundaryError(Boundary.ENGINE, "the engine is closed")
        self.calls.append(Call(session_id, np.array(prompt_ids, dtype=np.int32), params))
        answer = self._next(prompt_ids)
        if answer.delay_s > 0 and await self._closes_within(answer.delay_s):
            return Completion(np.empty(0, np.int32), np.empty(0, np.float32), "abort")
        if answer.error is not None:
            raise BoundaryError(Boundary.ENGINE, answer.error)
        count = min(len(answer.ids), params.max_new_tokens)
        ids = np.array(answer.ids[:count], dtype=np.int32)
        finish = answer.finish
        if finish is None or count < len(answer.ids):
            stopped = count > 0 and answer.ids[count - 1] in params.stop_token_ids
            finish = "stop" if stopped else "length"
        return Completion(ids, np.array(answer.logprobs[:count], dtype=np.float32), finish)

    async def release(self, session_id: str) -> None:
        """Notes the session."""
        self.released.append(session_id)

    async def close(self) -> None:
        """Ends delayed replies with finish `abort`."""
        self._closed.set()

    def _next(self, prompt_ids: NDArray[np.int32]) -> Reply:
        if self._function is not None:
            return self._function(prompt_ids)
        assert self._replies is not None
        answer = next(self._replies, None)
        if answer is None:
            raise BoundaryError(Boundary.ENGINE, f"the script has {len(self.calls) - 1} replies")
        return answer

    async def _closes_within(self, delay_s: float) -> bool:
        try:
            await asyncio.wait_for(self._closed.wait(), delay_s)
        except TimeoutError:
            return False
        return True

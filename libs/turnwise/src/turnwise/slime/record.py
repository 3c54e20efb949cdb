"""What an episode did so far, so that an aborted one goes on where it was.

1. While an episode runs, every finished turn (ids and log-probs as they came) and every message of
   the customer is kept. A turn that the engine gave back unfinished is not.
2. To go on, the episode loop is run again from the start. Turns and messages come from the record,
   tools run again on the environment's copy. Each replayed prompt must equal the recorded one, id
   by id; otherwise the episode is lost to the environment.
3. After the record the real engine and the real customer take over. A customer with a memory is
   told the conversation by its method `resume(task, opening, exchanges)`, `exchanges` being
   (what the agent said, `UserReply`) in order; the offline user is asked again, which costs
   nothing. Any other customer can't go on.

The record is JSON: it lies in `Sample.metadata`. Turn k's prompt is the first `shared` tokens of
all that came before it and then `prompt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from taubench.task import Task

from turnwise.engine import Completion, Engine, SamplingParams
from turnwise.engine.sglang import SGLangCompletion
from turnwise.episode import Boundary, BoundaryError
from turnwise.users import OfflineUser, User, UserReply

IntArray = NDArray[np.int32]
Span = Callable[[SamplingParams], AbstractContextManager[Callable[[Mapping[str, Any]], None]]]
"""Opens a trace span for a turn; what it gives takes the turn's `meta_info`."""


class Record:
    """The finished turns and the messages of the customer.

    Attributes:
        turns: Of each turn `shared`, `prompt`, `ids`, `logprobs`, `finish`, `weight_version`,
            `cached_tokens`, `meta`.
        opening: The customer's first message, None before it came.
        replies: `heard`, `text` and `done` of each later one.
        replayed: Turns that were there before this run.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            state: What `state` of an earlier record gave.
        """
        state = state or {}
        self.turns: list[dict[str, Any]] = list(state.get("turns", ()))
        self.opening: str | None = state.get("opening")
        self.replies: list[dict[str, Any]] = list(state.get("replies", ()))
        self.replayed = len(self.turns)

    def state(self) -> dict[str, Any]:
        """JSON-able; empty if there is nothing to go on from."""
        if self.opening is None and not self.turns:
            return {}
        return {"opening": self.opening, "replies": self.replies, "turns": self.turns}

    def add_turn(self, context: IntArray, prompt: IntArray, completion: Completion) -> None:
        extends = len(prompt) >= len(context) and np.array_equal(prompt[: len(context)], context)
        shared = len(context) if extends else 0
        meta = dict(getattr(completion, "meta", {}))
        if extends and self.turns:
            # Experts are given for the whole sequence each time: the last turn's hold all.
            self.turns[-1]["meta"].pop("routed_experts", None)
        self.turns.append(
            {
                "shared": shared,
                "prompt": prompt[shared:].tolist(),
                "ids": completion.ids.tolist(),
                "logprobs": completion.logprobs.tolist(),
                "finish": completion.finish,
                "weight_version": completion.weight_version,
                "cached_tokens": completion.cached_tokens,
                "meta": meta,
            }
        )


class RecordingEngine:
    """An engine of one episode: the recorded turns first, then those of `engine`."""

    def __init__(
        self,
        engine: Engine,
        record: Record,
        *,
        session_id: str,
        aborted: Callable[[], bool],
        span: Span,
    ) -> None:
        """
        Args:
            engine: Samples the turns that are not in the record.
            record: Is filled.
            session_id: What `engine` is given, whatever the episode loop says.
            aborted: Whether slime has ended the rollout: then no turn is begun.
            span: Around each sampled turn.
        """
        self._engine = engine
        self._record = record
        self._session_id = session_id
        self._aborted = aborted
        self._span = span
        self._turn = 0
        self._context: IntArray = np.empty(0, np.int32)

    async def generate(
        self, prompt_ids: IntArray, params: SamplingParams, *, session_id: str
    ) -> Completion:
        """See `Engine`.

        Raises:
            BoundaryError: at `Boundary.ENVIRONMENT`: the prompt of a recorded turn is another
                one; else what the engine raises.
        """
        turn, self._turn = self._turn, self._turn + 1
        if turn < self._record.replayed:
            completion = self._replay(turn, prompt_ids)
        elif self._aborted():
            return Completion(np.empty(0, np.int32), np.empty(0, np.float32), "abort")
        else:
            with self._span(params) as note:
                completion = await self._engine.generate(
                    prompt_ids, params, session_id=self._session_id
                )
                note(getattr(completion, "meta", {}))
            if completion.finish == "abort":
                return completion
            self._record.add_turn(self._context, prompt_ids, completion)
        self._context = np.concatenate([prompt_ids, completion.ids])
        return completion

    async def release(self, session_id: str) -> None:
        await self._engine.release(self._session_id)

    async def close(self) -> None:
        """Nothing: the engine is shared."""

    def _replay(self, turn: int, prompt_ids: IntArray) -> Completion:
        kept = self._record.turns[turn]
        recorded = np.concatenate(
            [self._context[: kept["shared"]], np.array(kept["prompt"], dtype=np.int32)]
        )
        if not np.array_equal(recorded, prompt_ids):
            raise BoundaryError(
                Boundary.ENVIRONMENT,
                f"turn {turn} can't be replayed: {_first_difference(recorded, prompt_ids)}",
            )
        return SGLangCompletion(
            ids=np.array(kept["ids"], dtype=np.int32),
            logprobs=np.array(kept["logprobs"], dtype=np.float32),
            finish=kept["finish"],
            weight_version=kept["weight_version"],
            cached_tokens=kept["cached_tokens"],
            meta=kept["meta"],
        )


class RecordingUser:
    """A customer of one episode: the recorded messages first, then those of `user`."""

    def __init__(self, user: User, record: Record) -> None:
        self._user = user
        self._record = record
        self._recorded = len(record.replies)
        self._resumes = record.opening is not None
        self._task: Task | None = None
        self._next = 0

    @property
    def name(self) -> str:
        return self._user.name

    async def reset(self, task: Task) -> str:
        """See `User`."""
        self._task = task
        if self._record.opening is None:
            self._record.opening = await self._user.reset(task)
        return self._record.opening

    async def reply(self, agent_text: object) -> UserReply:
        """See `User`.

        Raises:
            BoundaryError: at `Boundary.ENVIRONMENT`: the agent says something else than recorded;
                at `Boundary.USER`: this customer can't go on.
        """
        place, self._next = self._next, self._next + 1
        heard = agent_text if isinstance(agent_text, str) else None
        if place < self._recorded:
            kept = self._record.replies[place]
            if kept["heard"] != heard:
                raise BoundaryError(
                    Boundary.ENVIRONMENT,
                    f"reply {place} can't be replayed: the agent said {str(heard)[:80]!r}, "
                    f"recorded is {str(kept['heard'])[:80]!r}",
                )
            return UserReply(kept["text"], kept["done"])
        if self._resumes:
            await self._resume()
            self._resumes = False
        answer = await self._user.reply(agent_text)
        self._record.replies.append({"heard": heard, "text": answer.text, "done": answer.done})
        return answer

    async def _resume(self) -> None:
        assert self._task is not None
        kept = self._record.replies[: self._recorded]
        exchanges = [(one["heard"], UserReply(one["text"], one["done"])) for one in kept]
        resume = getattr(self._user, "resume", None)
        if resume is not None:
            await resume(self._task, self._record.opening, exchanges)
            return
        if not isinstance(self._user, OfflineUser):
            raise BoundaryError(
                Boundary.USER,
                f"{self._user.name} has no resume: it can't go on with a conversation",
            )
        said = [await self._user.reset(self._task)]
        said += [(await self._user.reply(heard)).text for heard, _ in exchanges]
        if said != [self._record.opening, *(one["text"] for one in kept)]:
            raise BoundaryError(
                Boundary.USER, f"{self._user.name} says something else than it has said"
            )


def _first_difference(recorded: IntArray, prompt: IntArray) -> str:
    size = min(len(recorded), len(prompt))
    different = np.flatnonzero(recorded[:size] != prompt[:size])
    if different.size == 0:
        return f"the prompt has {len(prompt)} tokens, recorded are {len(recorded)}"
    place = int(different[0])
    return f"token {place} of the prompt is {prompt[place]}, recorded is {recorded[place]}"

"""What an episode did so far, so that an aborted one goes on where it was.

1. While an episode runs, every finished turn is kept, ids and log-probs as they came, and every
   answer of a service that the method asks through `turnwise.replay`. A turn that the engine gave
   back unfinished is not.
2. To go on, the episode loop is run again from its start. Turns and answers come from the record,
   tools run again on the environment's copy. Each replayed prompt must equal the recorded one, id
   by id; otherwise the episode is lost to the environment.
3. After the record the real engine and the real services take over. A service with a memory is told
   what it had said: see `turnwise.replay.Replay.recorded`.

Turns are kept by the engine's session and their place in it, the order in which they were asked
for, so that several conversations of an episode, and several turns of one at once, find their own.

The record is JSON and lies in `Sample.metadata`: ids are base64 of little-endian int32, log-probs
of float32. A turn whose prompt extends an earlier turn of its session names it (`after`) and holds
the tokens that came since.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.engine import Completion, Engine, SamplingParams, takes_grammar
from turnwise.engine.sglang import SGLangCompletion
from turnwise.episode import Boundary, BoundaryError
from turnwise.replay import Replay

IntArray = NDArray[np.int32]
Span = Callable[[SamplingParams], AbstractContextManager[Callable[[Mapping[str, Any]], None]]]
"""Opens a trace span for a turn; what it gives takes the turn's `meta_info`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTurn:
    """A finished turn.

    Attributes:
        session: The engine's session within the episode: "" or the name of a conversation.
        place: Number of the turn in its session, from 0, as asked for.
        after: Place of the turn that the prompt extends; -1 if none.
        prompt: int32[n], all of it.
        completion: What was sampled; `meta` is what the server said beside.
        meta: The same, without what a later turn holds too.
        replayed: Whether it was kept before this run of the episode.
    """

    session: str
    place: int
    after: int
    prompt: IntArray
    completion: Completion
    meta: dict[str, Any]
    replayed: bool = False

    @property
    def tokens(self) -> IntArray:
        """int32[n]: the prompt and what was sampled after it."""
        return np.concatenate([self.prompt, self.completion.ids])


class EpisodeReplay:
    """The finished turns of an episode and the answers of its services.

    Attributes:
        services: What the method is given as `Rollout.replay`.
        turns: By session and place, in the order in which they were finished.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            state: What `state` of an earlier run of the episode was.
        """
        state = state or {}
        self.services = Replay(state.get("services"))
        self.turns: dict[tuple[str, int], KeptTurn] = {}
        for kept in state.get("turns", ()):
            turn = self._read(kept)
            self.turns[turn.session, turn.place] = turn

    def state(self) -> dict[str, Any]:
        """JSON-able; empty if there is nothing to go on from."""
        turns, services = [self._written(turn) for turn in self.turns.values()], self.services.calls
        return {"turns": turns, "services": services} if turns or services else {}

    def add(self, session: str, place: int, prompt: IntArray, completion: Completion) -> None:
        """Keeps a turn that the engine has finished."""
        meta = dict(getattr(completion, "meta", {}))
        earlier = self._extended(session, place, prompt)
        if earlier is not None:
            # Experts are given for the whole sequence each time: the last turn's hold all.
            earlier.meta.pop("routed_experts", None)
        self.turns[session, place] = KeptTurn(
            session=session,
            place=place,
            after=-1 if earlier is None else earlier.place,
            prompt=np.array(prompt, dtype=np.int32),
            completion=completion,
            meta=meta,
        )

    def _extended(self, session: str, place: int, prompt: IntArray) -> KeptTurn | None:
        before = [at for name, at in self.turns if name == session and at < place]
        if not before:
            return None
        turn = self.turns[session, max(before)]
        tokens = turn.tokens
        extends = len(prompt) >= len(tokens) and np.array_equal(prompt[: len(tokens)], tokens)
        return turn if extends else None

    def _written(self, turn: KeptTurn) -> dict[str, Any]:
        shared = len(self.turns[turn.session, turn.after].tokens) if turn.after >= 0 else 0
        completion = turn.completion
        return {
            "session": turn.session,
            "place": turn.place,
            "after": turn.after,
            "prompt": _packed(turn.prompt[shared:], "<i4"),
            "ids": _packed(completion.ids, "<i4"),
            "logprobs": _packed(completion.logprobs, "<f4"),
            "finish": completion.finish,
            "weight_version": completion.weight_version,
            "cached_tokens": completion.cached_tokens,
            "meta": turn.meta,
        }

    def _read(self, kept: Mapping[str, Any]) -> KeptTurn:
        prompt = _unpacked(kept["prompt"], "<i4").astype(np.int32)
        if kept["after"] >= 0:
            earlier = self.turns[kept["session"], kept["after"]]
            prompt = np.concatenate([earlier.tokens, prompt])
        completion = SGLangCompletion(
            ids=_unpacked(kept["ids"], "<i4").astype(np.int32),
            logprobs=_unpacked(kept["logprobs"], "<f4").astype(np.float32),
            finish=kept["finish"],
            weight_version=kept["weight_version"],
            cached_tokens=kept["cached_tokens"],
            meta=kept["meta"],
        )
        return KeptTurn(
            session=kept["session"],
            place=kept["place"],
            after=kept["after"],
            prompt=prompt,
            completion=completion,
            meta=dict(kept["meta"]),
            replayed=True,
        )


class ReplayEngine:
    """An engine of one episode: the recorded turns first, then those of `engine`."""

    def __init__(
        self,
        engine: Engine,
        replay: EpisodeReplay,
        *,
        rollout_id: str,
        routing_key: str,
        aborted: Callable[[], bool],
        span: Span,
    ) -> None:
        """
        Args:
            engine: Samples the turns that are not recorded.
            replay: Is filled.
            rollout_id: Of this run of the episode; sessions are named after it.
            routing_key: The session that `engine` is given for all of the episode's.
            aborted: Whether slime has ended the rollout: then no turn is begun.
            span: Around each sampled turn.
        """
        self._engine, self._replay = engine, replay
        self._rollout_id, self._routing_key = rollout_id, routing_key
        self._aborted, self._span = aborted, span
        self._asked: Counter[str] = Counter()

    @property
    def takes_grammar(self) -> bool:
        """As of the engine."""
        return takes_grammar(self._engine)

    async def generate(
        self, prompt_ids: IntArray, params: SamplingParams, *, session_id: str
    ) -> Completion:
        """See `Engine`.

        Raises:
            BoundaryError: at `Boundary.ENVIRONMENT`: the prompt of a recorded turn is another
                one; else what the engine raises.
        """
        session = session_id.removeprefix(self._rollout_id).removeprefix("/")
        place = self._asked[session]
        self._asked[session] += 1
        kept = self._replay.turns.get((session, place))
        if kept is not None:
            _check_prompt(kept, prompt_ids)
            return kept.completion
        if self._aborted():
            return Completion(np.empty(0, np.int32), np.empty(0, np.float32), "abort")
        with self._span(params) as note:
            completion = await self._engine.generate(
                prompt_ids, params, session_id=self._routing_key
            )
            note(getattr(completion, "meta", {}))
        if completion.finish != "abort":
            self._replay.add(session, place, prompt_ids, completion)
        return completion

    async def release(self, session_id: str) -> None:
        await self._engine.release(self._routing_key)

    async def close(self) -> None:
        """Nothing: the engine is shared."""


def _check_prompt(kept: KeptTurn, prompt: IntArray) -> None:
    recorded = kept.prompt
    if np.array_equal(recorded, prompt):
        return
    size = min(len(recorded), len(prompt))
    different = np.flatnonzero(recorded[:size] != prompt[:size])
    if different.size == 0:
        found = f"the prompt has {len(prompt)} tokens, recorded are {len(recorded)}"
    else:
        at = int(different[0])
        found = f"token {at} of the prompt is {prompt[at]}, recorded is {recorded[at]}"
    where = f" of {kept.session}" if kept.session else ""
    raise BoundaryError(
        Boundary.ENVIRONMENT, f"turn {kept.place}{where} can't be replayed: {found}"
    )


def _packed(values: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode()


def _unpacked(text: str, dtype: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), dtype=dtype)

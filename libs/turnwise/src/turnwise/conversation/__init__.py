"""The policy's turns of an episode: the one place where a policy is sampled.

    async with Conversation(policy, rollout, tools=tools) as talk:
        turn = await talk.ask([{"role": "user", "content": question}])
        if turn.ending is not None:                 # out of tokens or context, or aborted
            return talk.episode(turn.ending, score=0.0)
        ...
        return talk.episode(Ending.finished(), score=reward)

1. `ask` extends one growing history; `fresh` samples a turn in a history of its own, from messages
   or from ids; `sync` takes a whole history as a client sends it. Several conversations may lead
   one episode, each under a name.
2. Turn k is drawn with `derive_seed(rollout.seed, "turn", k)`, so that a result depends on the
   rollout's seed and not on what else is running.
3. What was sampled goes into the `tokendelta.Session` verbatim, and only its text is read.
4. A deadline bounds each turn, repeats of a request included. Failures of the engine raise
   `BoundaryError`; nothing that the policy wrote raises.
5. Leaving the block releases the engine's sessions, whatever happened.

With an `EndpointPolicy` the same calls speak to an OpenAI-compatible endpoint: no tokens are known,
so the episode has no segments, and it can be evaluated and not trained on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np
import tokendelta
import toolparse
from numpy.typing import NDArray

from turnwise.conversation.endpoint import EndpointHistory
from turnwise.conversation.history import (
    Asked,
    CallError,
    History,
    Message,
    Overflow,
    ToolCall,
    Turn,
    encoded,
    reading,
)
from turnwise.conversation.recorded import Recorded
from turnwise.conversation.tokens import Specials, TokenHistory
from turnwise.episode import Boundary, BoundaryError, Ending, Episode, crossing
from turnwise.inflight import waiting
from turnwise.models.text import KNOWN_MARKERS, Markers
from turnwise.policy import AnyPolicy, EndpointPolicy
from turnwise.rollout import Rollout, derive_seed
from turnwise.rounds import own_round

__all__ = ["CallError", "Conversation", "Overflow", "ToolCall", "Turn"]

TURN_DEADLINE_S = 600.0
RELEASE_DEADLINE_S = 10.0
COUNTS = (
    "turns", "prompt_tokens", "sampled_tokens", "cached_tokens", "cut_turns", "parse_errors",
    "tool_calls", "dropped_tokens", "rewrites",
)  # fmt: skip


class Conversation:
    """Asks the policy, and keeps what it said.

    Attributes:
        turns: In the order in which they were asked for.
        messages: The transcript so far; see `transcript`.
        counts: By the names in `COUNTS`, and `parse_errors/KIND`.
        engine_s: Seconds of waiting for the engine.
        weight_versions: Of the turns.
        cached: Of each turn that was sampled the tokens of its prompt, and those of them that
            were not computed again.
        release_error: Why the engine did not release a session; None if it did.
        overflow: Of the first prompt; None where a turn was sampled or none was asked for.
    """

    def __init__(
        self,
        policy: AnyPolicy,
        rollout: Rollout[Any],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        name: str = "",
        parse: bool | None = None,
        deadline_s: float = TURN_DEADLINE_S,
        specials: Specials = "parity",
    ) -> None:
        """
        Args:
            policy: Who is asked.
            rollout: The episode.
            tools: Shown to the policy by its chat template, and what calls are checked against.
            name: Tells several conversations of an episode apart.
            parse: Whether turns are read as the policy's tool-call format; where there are tools
                if None.
            deadline_s: Seconds for each turn, repeats of a request included.
            specials: What becomes of text that spells a special token; see `tokendelta.Session`.
        """
        self.policy, self.rollout = policy, rollout
        self.turns: list[Turn] = []
        self.overflow: Overflow | None = None
        self.messages: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()
        self.engine_s = 0.0
        self.weight_versions: set[int] = set()
        self.cached: list[tuple[int, int]] = []
        self.release_error: str | None = None
        self._tools, self._name = list(tools), name
        parse = bool(tools) if parse is None else parse
        self._toolset = toolparse.ToolSet(self._tools) if parse else None
        self._deadline_s, self._specials = deadline_s, specials
        self._started = time.perf_counter()
        self._growing: History | None = None
        self._histories: list[History] = []
        self._unsent: list[dict[str, Any]] = []
        self._next = 0
        self._session_id = f"{rollout.rollout_id}/{name}" if name else rollout.rollout_id
        self._record: Recorded | None = None

    @cached_property
    def markers(self) -> Markers:
        """The texts that become special tokens in a prompt of the policy; of an endpoint, whose
        tokenizer is not at hand, those of the usual model families."""
        if isinstance(self.policy, EndpointPolicy):
            return KNOWN_MARKERS
        specials = self.policy.profile.specials
        return Markers(
            text for text, token in specials.by_text.items() if token in specials.control
        )

    async def __aenter__(self) -> Conversation:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, BoundaryError) and error.conversation is None:
            error.conversation = self
        await self.release()

    def add(self, message: Message, *, author: str | None = None) -> None:
        """Writes a message down for the next prompt of the growing history.

        Args:
            message: OpenAI-style: `role` and `content`, of a tool also `name`.
            author: For the trace: who wrote it; by its role if None.
        """
        entry = {"author": author or _author(message), **message, "turn": self._next}
        self.messages.append(entry)
        self._unsent.append(entry)

    def note(self, message: Message, *, author: str) -> None:
        """Writes down what no prompt holds as it is, such as a helper's words, for the trace."""
        last = self.turns[-1].number if self.turns else None
        self.messages.append({**message, "author": author, "turn": last or 0, "after": last})

    async def ask(self, messages: Iterable[Message] = ()) -> Turn | Overflow:
        """The next turn of the growing history.

        Args:
            messages: Added first, to those of `add`.

        Raises:
            BoundaryError: the engine failed or missed its deadline, or a message can't stand there.
        """
        await own_round()
        for message in messages:
            self.add(message)
        if self._growing is None:
            self._growing = self._open(self._specials)
        sent, self._unsent = self._unsent, []
        async with crossing(Boundary.ENVIRONMENT):
            overflow = await encoded(self._growing.extend, sent)
        if overflow is not None:
            return self._refused(overflow)
        return await self._sample(self._growing)

    async def sync(self, messages: Sequence[Message]) -> Turn | Overflow:
        """The next turn after a whole history, which extends, forks or repeats the recorded one.

        Raises:
            BoundaryError: see `ask`.
        """
        if self._growing is None:
            self._growing = self._open(self._specials)
        await own_round()
        async with crossing(Boundary.ENVIRONMENT):
            overflow = await encoded(self._growing.sync, messages)
        if overflow is not None:
            return self._refused(overflow)
        self._unsent = []
        self.messages = [
            {**message, "author": _author(message), "turn": self._next} for message in messages
        ]
        return await self._sample(self._growing)

    async def fresh(
        self,
        messages: Sequence[Message] = (),
        *,
        ids: NDArray[np.int32] | None = None,
        max_new_tokens: int | None = None,
    ) -> Turn | Overflow:
        """A turn in a history of its own, which ends with it. Several may be under way at once.

        Args:
            messages: Its prompt, or
            ids: int32[n], the prompt as the policy shall see it, generation prompt included.
            max_new_tokens: Of this turn, at least 1; the policy's own limit holds as well.

        Raises:
            BoundaryError: see `ask`.
            ValueError: not exactly one of the two, or ids for an endpoint.
        """
        if bool(messages) == (ids is not None):
            raise ValueError("fresh: give messages or ids")
        await own_round()
        history = self._open(self._specials, on_rewrite="error")
        async with crossing(Boundary.ENVIRONMENT):
            if ids is None:
                overflow = await encoded(history.extend, messages)
            elif isinstance(history, TokenHistory):
                overflow = history.start_with(ids)
            else:
                raise ValueError("fresh: an endpoint takes messages, not ids")
        if overflow is not None:
            return self._refused(overflow)
        asked = messages
        if ids is not None and not isinstance(self.policy, EndpointPolicy):
            asked = [{"role": "user", "content": self.policy.text(ids)}]
        self.messages += [{"author": "prompt", **one, "turn": self._next} for one in asked]
        return await self._sample(history, max_new_tokens)

    async def release(self) -> None:
        """Frees the engine's session; a failure is noted, since the turns are over anyway."""
        if isinstance(self.policy, EndpointPolicy):
            return
        try:
            async with crossing(Boundary.ENGINE, deadline_s=RELEASE_DEADLINE_S):
                await self.policy.engine.release(self._session_id)
        except BoundaryError as error:
            self.release_error = str(error)

    def segments(self) -> tuple[tokendelta.Sample, ...]:
        """Everything that can be trained, in order; turn numbers are those of the conversation."""
        return self._recorded().segments

    def transcript(self) -> list[dict[str, Any]]:
        """Messages in order, for the trace.

        Each has `role`, `content`, `author` (`prompt`, `policy`, `user`, `tool:NAME` or what it was
        given), `turn`, and `segment` with `span`: the place [start, stop) in
        `segments()[segment].ids`, None where it never got into a prompt. Messages that entered a
        prompt together share their span; one of `note` has the empty span at the end of the turn
        before it. A message of the policy has `text` (all that was sampled) and `finish` as well,
        and how its calls were read (`turnwise.conversation.history.reading`).
        """
        places = self._recorded().places
        turns = {turn.number: turn for turn in self.turns}
        rows = []
        for message in self.messages:
            entry = dict(message)
            if "after" in entry:
                found = places.get((entry.pop("after"), True))
                span = found and [found[2], found[2]]
            else:
                found = places.get((entry["turn"], entry["author"] == "policy"))
                span = found and found[1:]
            if "finish" in entry and entry["turn"] in turns:
                entry |= reading(turns[entry["turn"]])
            rows.append({**entry, "segment": found and found[0], "span": span})
        return rows

    def metrics(self) -> dict[str, float]:
        """`COUNTS`, `parse_errors/KIND`, and `engine_s` in seconds.

        Calls and errors are those of whole turns: a turn that was cut makes none.
        """
        record = self._recorded()
        return {
            **dict.fromkeys(COUNTS, 0.0),
            **{name: float(count) for name, count in self.counts.items()},
            "dropped_tokens": float(sum(drop["tokens"] for drop in record.dropped)),
            "rewrites": float(len(record.rewrites)),
            "engine_s": self.engine_s,
        }

    def info(self) -> dict[str, Any]:
        """JSON-able facts for the trace: the seed, weight versions, cached tokens by turn, what was
        dropped, rewritten; `first_prompt` where that did not fit (`Overflow`)."""
        record = self._recorded()
        return {
            "seed": self.rollout.seed,
            "weight_versions": sorted(self.weight_versions),
            "cached": self.cached,
            "release_error": self.release_error,
            "dropped": record.dropped,
            "rewrites": record.rewrites,
            **({} if self.overflow is None else {"first_prompt": asdict(self.overflow)}),
        }

    def episode(
        self,
        ending: Ending,
        score: float | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
        info: Mapping[str, Any] | None = None,
        credit: Sequence[float | None] = (),
    ) -> Episode:
        """The episode that this conversation was.

        Args:
            ending: How it ended.
            score: The reward; left out where the ending is not the policy's.
            metrics, info: Beside the conversation's own, and before them.
            credit: What each segment earns beside the score; left out likewise, and where a policy
                has no segments.
        """
        segments = self.segments()
        return Episode(
            rollout_id=self.rollout.rollout_id,
            group_id=self.rollout.group_id,
            task_id=self.rollout.task_id,
            segments=segments,
            ending=ending,
            score=score if ending.by_policy else None,
            transcript=self.transcript(),
            metrics={**self.metrics(), **(metrics or {})},
            info={**self.info(), **(info or {})},
            wall_s=time.perf_counter() - self._started,
            credit=tuple(credit) if segments and ending.by_policy else (),
        )

    def _open(self, specials: Specials, on_rewrite: Any = None) -> History:
        history: History
        if isinstance(self.policy, EndpointPolicy):
            history = EndpointHistory(self.policy, tools=self._tools)
        else:
            history = TokenHistory(
                self.policy,
                tools=self._tools,
                toolset=self._toolset,
                specials=specials,
                on_rewrite=on_rewrite or self.policy.on_rewrite,
            )
        self._histories.append(history)
        return history

    async def _sample(self, history: History, max_new_tokens: int | None = None) -> Turn | Overflow:
        number, self._next = self._next, self._next + 1
        parts = ("turn", number) if not self._name else ("turn", self._name, number)
        asked = Asked(
            number=number,
            seed=derive_seed(self.rollout.seed, *parts),
            session_id=self._session_id,
            deadline_s=self._deadline_s,
            max_new_tokens=max_new_tokens,
        )
        started = time.perf_counter()
        try:
            with waiting(f"turn {number}"):
                sampled = await history.sample(asked)
        finally:
            self.engine_s += time.perf_counter() - started
        if isinstance(sampled, Overflow):
            return self._refused(sampled)
        turn = sampled.turn
        self.overflow = None
        self.turns.append(turn)
        self._record = None
        self._count(turn, sampled.cached_tokens)
        if turn.tokens:
            self.cached.append((turn.prompt_tokens, sampled.cached_tokens))
        if sampled.weight_version is not None:
            self.weight_versions.add(sampled.weight_version)
        self.messages.append(
            {**sampled.message, "text": turn.text, "finish": turn.finish}
            | {"author": "policy", "turn": number}
        )
        return turn

    def _refused(self, overflow: Overflow) -> Overflow:
        if not self.turns:
            self.overflow = overflow
        return overflow

    def _count(self, turn: Turn, cached_tokens: int) -> None:
        self.counts["turns"] += 1
        self.counts["prompt_tokens"] += turn.prompt_tokens
        self.counts["sampled_tokens"] += turn.tokens
        self.counts["cached_tokens"] += cached_tokens
        self.counts["cut_turns"] += turn.finish == "length"
        if turn.finish != "stop":
            return
        self.counts["tool_calls"] += len(turn.calls)
        for error in turn.errors:
            self.counts["parse_errors"] += 1
            self.counts[f"parse_errors/{error.kind}"] += 1

    def _recorded(self) -> Recorded:
        if self._record is None:
            self._record = Recorded(
                [one for one in self._histories if isinstance(one, TokenHistory) and one.numbers]
            )
        return self._record


def _author(message: Message) -> str:
    role = str(message.get("role"))
    if role == "tool":
        return f"tool:{message.get('name', '')}"
    return {"system": "prompt", "assistant": "policy"}.get(role, role)

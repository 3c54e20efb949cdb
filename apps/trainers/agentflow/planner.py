"""The trained turns of one episode: text in, sampled ids kept verbatim, text out.

Every turn is a fresh chat of one user message and so a token sequence of its own
(`tokendelta.Session`): the engine is sent its ids, and what it sampled is appended as it came. All
turns of an episode share the engine's session, which is released once.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace

import tokendelta
from tokendelta import Overflow, Sample
from turnwise.engine import Completion, Finish
from turnwise.episode import Boundary, BoundaryError, crossing
from turnwise.models.text import Markers
from turnwise.policy import Policy
from turnwise.rollout import derive_seed

RELEASE_DEADLINE_S = 10.0
PLANNER_COUNTS = ("prompt_tokens", "sampled_tokens", "cached_tokens")


@dataclass(frozen=True, slots=True)
class Turn:
    """One sampled turn.

    Attributes:
        number: From 0, and the number of its segment.
        prompt: What was asked.
        text: What was sampled, without the stop token at its end; other special tokens as text.
        finish: The engine's reason to end it.
        prompt_tokens, tokens: Sizes of the prompt and of what was sampled.
    """

    number: int
    prompt: str
    text: str
    finish: Finish
    prompt_tokens: int
    tokens: int


class Planner:
    """Samples the planner's turns.

    Attributes:
        markers: The texts that the policy's tokenizer makes special tokens of.
        turns: In order.
        counts: By the names in `PLANNER_COUNTS`.
        engine_s: Seconds that the engine took.
        weight_versions: Of the turns.
        release_error: Why the engine did not release the session; None if it did.
    """

    def __init__(self, policy: Policy, *, rollout_id: str, seed: int, deadline_s: float) -> None:
        self._policy = policy
        self._rollout_id, self._seed, self._deadline_s = rollout_id, seed, deadline_s
        self._sessions: list[tokendelta.Session] = []
        specials = policy.profile.specials
        self.markers = Markers(
            text for text, token in specials.by_text.items() if token in specials.control
        )
        self.turns: list[Turn] = []
        self.counts: Counter[str] = Counter()
        self.engine_s = 0.0
        self.weight_versions: set[int] = set()
        self.release_error: str | None = None

    async def ask(self, prompt: str) -> Turn | Overflow:
        """The next turn; `Overflow` if the prompt leaves no token of the context.

        Raises:
            BoundaryError: the engine failed, or missed its deadline.
        """
        session = tokendelta.Session(
            self._policy.profile,
            tools=(),
            max_tokens=self._policy.max_context_tokens,
            on_rewrite="error",
            specials="escape",
        )
        async with crossing(Boundary.ENVIRONMENT):
            ids = session.start([{"role": "user", "content": prompt}])
        if isinstance(ids, Overflow):
            return ids
        remaining = session.remaining
        assert remaining is not None
        if not remaining:
            return Overflow(len(ids) + 1, remaining, self._policy.max_context_tokens)
        number = len(self.turns)
        completion = await self._sample(ids, remaining, number)
        async with crossing(Boundary.ENGINE):
            text = self._policy.text(completion.ids)
            overflow = session.append_sampled(
                completion.ids.tolist(), completion.logprobs.tolist(), completion.finish
            )
            if overflow is not None:
                raise BoundaryError(
                    Boundary.ENGINE,
                    f"{overflow.needed} tokens sampled where {overflow.available} were asked for",
                )
            if not len(completion.ids) and completion.finish != "abort":
                raise BoundaryError(
                    Boundary.ENGINE, f"no token sampled, and the finish is {completion.finish}"
                )
        self._sessions.append(session)
        turn = Turn(number, prompt, text, completion.finish, len(ids), len(completion.ids))
        self.turns.append(turn)
        self.counts["prompt_tokens"] += turn.prompt_tokens
        self.counts["sampled_tokens"] += turn.tokens
        return turn

    async def _sample(
        self, prompt: tokendelta.sample.IntArray, remaining: int, number: int
    ) -> Completion:
        sampling = self._policy.sampling
        params = replace(
            sampling,
            seed=derive_seed(self._seed, "turn", number),
            max_new_tokens=min(sampling.max_new_tokens, remaining),
        )
        started = time.perf_counter()
        try:
            async with crossing(Boundary.ENGINE, deadline_s=self._deadline_s):
                completion = await self._policy.engine.generate(
                    prompt, params, session_id=self._rollout_id
                )
        finally:
            self.engine_s += time.perf_counter() - started
        self.counts["cached_tokens"] += completion.cached_tokens
        self.weight_versions.add(completion.weight_version)
        return completion

    async def release(self) -> None:
        """Frees the engine's session; a failure is noted, since the episode is over anyway."""
        try:
            async with crossing(Boundary.ENGINE, deadline_s=RELEASE_DEADLINE_S):
                await self._policy.engine.release(self._rollout_id)
        except BoundaryError as error:
            self.release_error = str(error)

    def segments(self) -> tuple[Sample, ...]:
        """One for each turn, in order, as if one session had made them: numbers of turns and
        segments, and weights, are those of the episode. A turn without a token has none.
        """
        samples = [sample for made in self._sessions for sample in made.samples().samples]
        total = sum(sample.trained_tokens for sample in samples)
        return tuple(
            replace(
                sample,
                segment=number,
                weight=sample.trained_tokens / total,
                spans=tuple(replace(span, turn=number) for span in sample.spans),
            )
            for number, sample in enumerate(samples)
        )

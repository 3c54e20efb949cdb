"""A frozen model in this process: a policy's engine, asked by text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tokendelta
from numpy.typing import NDArray

from turnwise.engine import Completion, SamplingParams
from turnwise.episode import BoundaryError, crossing
from turnwise.inflight import REGISTRY, Service
from turnwise.limiter import Limiter
from turnwise.models.chat import at_most, plain_messages, renamed
from turnwise.models.client import ConversationTooLong
from turnwise.models.config import ModelConfig
from turnwise.models.protocol import Answer, Message
from turnwise.models.text import Markers, plain_text
from turnwise.spend import Spend

if TYPE_CHECKING:
    from turnwise.policy import Policy

_MAX_ABORTS = 8
_DEFAULT_MAX_TOKENS = 4096


class EngineModel:
    """Asks `policy.engine` with the policy's chat template. A `FrozenModel`.

    Weights are the engine's at the time: if a trainer updates them, the helper follows. An answer
    that an update cut off is asked for again, up to 8 times within the deadline; one without words
    `max_empty_replies` times, unless the model is greedy and would say the same again.

    Attributes:
        name: Of its role.
        config: As given.
        spend: Tokens so far, at the configuration's prices.
        truncated: Answers that ended for their length.
        failures: Questions without an answer.
        aborts: Answers cut off by an update of the weights.
        empty_replies: Answers without words.
        temperature: Of every draw.
    """

    def __init__(
        self, name: str, config: ModelConfig, policy: Policy, *, limiter: Limiter | None = None
    ) -> None:
        self.name = name
        self.config = config
        self.spend = Spend(config.read_price, config.write_price, config.spend_cap_usd)
        self.truncated = self.failures = self.aborts = self.empty_replies = 0
        self.temperature = 1.0 if config.temperature is None else config.temperature
        self._policy = policy
        self._limiter = limiter or Limiter(concurrency=config.concurrency)
        self._markers = Markers.of(policy.profile.tokenizer)
        self._hidden = policy.profile.specials.control | policy.profile.stop_ids
        self._sessions = itertools.count()
        REGISTRY.add_service(self)

    def service(self) -> Service:
        """Its queue and its costs, as `turnwise.inflight` shows them."""
        name = f"{self.config.boundary}: {self.name} of the policy's engine"
        return Service(name, self.config.boundary, self._limiter, self.spend)

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Answer:
        """See `FrozenModel`."""
        config = self.config
        limit = at_most(max_tokens, config.max_tokens or _DEFAULT_MAX_TOKENS)
        try:
            async with crossing(config.boundary, deadline_s=config.deadline_s):
                async with self._limiter.slot():
                    answer = await self._answer(self._prompt(messages), limit, seed)
        except BoundaryError as error:
            self.failures += 1
            raise renamed(error, self.name, config.boundary) from error
        self.truncated += answer.finish == "length"
        return answer

    async def check(self, deadline_s: float) -> None:
        """Samples one token.

        Raises:
            BoundaryError: it can't be sampled.
        """
        async with crossing(self.config.boundary, deadline_s=deadline_s):
            await self._sample(self._prompt([{"role": "user", "content": "Say: ready"}]), 1, None)

    def metrics(self) -> dict[str, float]:
        """Requests, tokens, US dollars, aborts, empty and truncated answers, failures."""
        return {
            **self.spend.row(),
            "aborts": float(self.aborts),
            "empty_replies": float(self.empty_replies),
            "truncated": float(self.truncated),
            "failures": float(self.failures),
        }

    async def close(self) -> None:
        """Nothing: the engine belongs to the policy."""

    def _prompt(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        session = tokendelta.Session(self._policy.profile, tools=(), specials="escape")
        prompt = session.start(plain_messages(messages, self._markers))
        assert not isinstance(prompt, tokendelta.Overflow), "no limit was given"
        if len(prompt) >= self._policy.max_context_tokens:
            raise ConversationTooLong(
                self.config.boundary,
                f"the conversation has {len(prompt)} tokens, of a context of "
                f"{self._policy.max_context_tokens}",
            )
        return prompt

    async def _answer(self, prompt: NDArray[np.int32], limit: int, seed: int | None) -> Answer:
        limit = min(limit, self._policy.max_context_tokens - len(prompt))
        pledged = self.spend.pledge(len(prompt), limit, boundary=self.config.boundary)
        try:
            for attempt in range(1 + self.config.max_empty_replies):
                completion = await self._sample(
                    prompt, limit, None if seed is None else seed + attempt
                )
                text = self._text(completion.ids)
                self.spend.pay(len(prompt), len(completion.ids), estimated=False)
                if text.strip():
                    return Answer(text, len(prompt), len(completion.ids), completion.finish)
                self.empty_replies += 1
                if self.temperature == 0:
                    break
        finally:
            self.spend.release(pledged)
        raise BoundaryError(self.config.boundary, f"{attempt + 1} answers without words")

    async def _sample(self, prompt: NDArray[np.int32], limit: int, seed: int | None) -> Completion:
        params = SamplingParams(
            temperature=self.temperature,
            top_p=self.config.top_p,
            max_new_tokens=limit,
            stop_token_ids=self._policy.sampling.stop_token_ids,
            seed=seed,
        )
        session_id = f"{self.name}/{id(self):x}/{next(self._sessions)}"
        try:
            for _ in range(1 + _MAX_ABORTS):
                completion = await self._policy.engine.generate(
                    prompt, params, session_id=session_id
                )
                if completion.finish != "abort":
                    return completion
                self.aborts += 1
        finally:
            await self._policy.engine.release(session_id)
        raise BoundaryError(
            self.config.boundary, f"updates of the weights cut off {1 + _MAX_ABORTS} answers"
        )

    def _text(self, ids: NDArray[np.int32]) -> str:
        kept = [int(token) for token in ids if int(token) not in self._hidden]
        text = self._policy.profile.tokenizer.decode(
            kept, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return plain_text(str(text), self._markers)

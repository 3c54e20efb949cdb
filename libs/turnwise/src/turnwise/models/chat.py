"""A frozen model behind an OpenAI-compatible endpoint or an SGLang router."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.episode import Boundary, BoundaryError
from turnwise.limiter import Limiter
from turnwise.models.client import CHECK_DEADLINE_S, ChatClient
from turnwise.models.config import ModelConfig
from turnwise.models.protocol import Act, Answer, Message
from turnwise.models.text import KNOWN_MARKERS, Markers, plain_text
from turnwise.spend import Spend


class ChatModel:
    """Asks an endpoint: one pool of connections, one limiter, one account. A `FrozenModel`.

    Deadline, repeats and the spend cap are `ChatClient`'s.

    Attributes:
        name: Of its role.
        config: As given.
        client: Asks.
        truncated: Answers that ended for their length.
        failures: Questions without an answer.
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        *,
        base_url: str = "",
        markers: Markers = KNOWN_MARKERS,
        limiter: Limiter | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """
        Args:
            name: Of its role.
            config: How to ask.
            base_url: Where `config.sglang` is; without it the configuration's own.
            markers: The model's special tokens.
            limiter: Shared with other models of the endpoint.
            environ: Where the key is.

        Raises:
            ConfigError: the key's variable is not set, or there is no URL.
        """
        self.name = name
        self.config = config
        self.client = ChatClient(
            config.chat(base_url or config.base_url),
            boundary=config.boundary,
            limiter=limiter,
            environ=environ,
        )
        self.truncated = 0
        self.failures = 0
        self._markers = markers

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Answer:
        """See `FrozenModel`."""
        extra = self._extra()
        if max_tokens is not None:
            extra["max_tokens"] = at_most(max_tokens, self.config.max_tokens)
        if seed is not None:
            extra["seed"] = seed
        try:
            reply = await self.client.complete(plain_messages(messages, self._markers), extra=extra)
        except BoundaryError as error:
            self.failures += 1
            raise renamed(error, self.name, self.config.boundary) from error
        self.truncated += reply.finish == "length"
        text = plain_text(reply.text, self._markers)
        return Answer(text, reply.read_tokens, reply.written_tokens, reply.finish)

    async def act(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        *,
        seed: int | None = None,
    ) -> Act:
        """See `ActingModel`."""
        extra = self._extra() | ({} if seed is None else {"seed": seed})
        try:
            reply = await self.client.complete(
                plain_messages(messages, self._markers), tools=tools, extra=extra
            )
        except BoundaryError as error:
            self.failures += 1
            raise renamed(error, self.name, self.config.boundary) from error
        self.truncated += reply.finish == "length"
        return Act(
            plain_text(reply.text, self._markers),
            tuple((call.name, call.arguments) for call in reply.tool_calls),
            reply.read_tokens,
            reply.written_tokens,
            reply.finish,
        )

    @property
    def spend(self) -> Spend:
        """What was used so far."""
        return self.client.spend

    async def check(self, deadline_s: float = CHECK_DEADLINE_S) -> float:
        """Whether it answers, and after how many seconds: see `ChatClient.check`.

        Raises:
            BoundaryError: it does not.
        """
        return await self.client.check(deadline_s=deadline_s, extra=self._extra())

    def metrics(self) -> dict[str, float]:
        """Requests, tokens, US dollars, repeats, rejections, truncated answers, failures."""
        return {
            **self.client.spend.row(),
            "retries": float(self.client.retries),
            "empty_replies": float(self.client.empty_replies),
            "rejections": float(self.client.limiter.rejections),
            "truncated": float(self.truncated),
            "failures": float(self.failures),
        }

    async def close(self) -> None:
        """Closes the connections of this event loop."""
        await self.client.close()

    def _extra(self) -> dict[str, Any]:
        return {"top_p": self.config.top_p} if self.config.top_p < 1 else {}


def plain_messages(messages: Sequence[Message], markers: Markers) -> list[dict[str, Any]]:
    """The conversation with the text of each message made plain."""
    return [
        {
            name: plain_text(part, markers) if name == "content" and isinstance(part, str) else part
            for name, part in message.items()
        }
        for message in messages
    ]


def at_most(tokens: int | None, configured: int) -> int:
    """The lesser; None and 0 set no limit. Raises ValueError for `tokens` below 1."""
    if tokens is None:
        return configured
    if tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, found {tokens}")
    return min(tokens, configured) if configured else tokens


def renamed(error: BoundaryError, name: str, boundary: Boundary) -> BoundaryError:
    """The same failure, of the model called `name`, at its boundary."""
    return type(error)(boundary, f"{name}: {error}")

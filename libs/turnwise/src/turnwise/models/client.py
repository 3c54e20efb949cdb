"""Frozen models behind an OpenAI-compatible endpoint: users, judges, experts.

    client = ChatClient(ChatConfig(base_url=URL, model=NAME, key_env="GEMINI_API_KEY"))
    reply = await client.complete([{"role": "user", "content": "Hi"}])
    await client.close()

1. A request that brought no answer is sent again after a pause (`turnwise.retry`), as often as the
   deadline allows; where no connection can be made, for `patience_s`, counted from the first
   question that found nobody. That is logged at once.
2. An answer that can't be used (`turnwise.models` has the table) is asked for again
   `max_empty_replies` times. No other answer is asked for again because of what it says.
3. Everything else fails at once: another status, a prompt too long, a quota used up.
4. Every failure is a `BoundaryError` at the boundary of the client, so that it costs an episode
   and never earns a reward. This is the only layer that retries, and its deadline spans all of it.

The key is read from the environment at each request and kept nowhere; what an endpoint says is
searched for it before it is shown.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, DeadlineExceeded, crossing
from turnwise.inflight import REGISTRY, Service
from turnwise.limiter import Limiter, Slot
from turnwise.models import meter
from turnwise.models.answer import (
    REASONING,
    ChatReply,
    NoAnswer,
    Refused,
    TooLong,
    Unusable,
    check_status,
    decode,
    read_error,
    read_reply,
    sendable,
    usage,
)
from turnwise.models.config import ChatConfig
from turnwise.models.connections import Connections, NobodyAnswers
from turnwise.printable import one_line
from turnwise.retry import Backoff, retry_after_s
from turnwise.rounds import own_round
from turnwise.spend import CHARACTERS_PER_TOKEN, Spend

MIN_SECRET_CHARACTERS = 8
"""A shorter key (`EMPTY` for a server of one's own) is a word that answers may hold."""
CHECK_DEADLINE_S = 60.0
GREETING = ({"role": "user", "content": "Hello"},)
_UNBOUNDED_REPLY_TOKENS = 4096
_EXCERPT = 300

logger = logging.getLogger(__name__)

Message = Mapping[str, Any]
"""`role` and `content`; `tool_calls` of an assistant, `tool_call_id` of a tool."""


class ConversationTooLong(BoundaryError):
    """The endpoint refuses a conversation because of its length."""


def has_words(text: str) -> bool:
    """Whether an answer says anything."""
    return bool(text.strip())


class ChatClient:
    """Asks one model. Keeps one pool of connections per event loop; see the module.

    Attributes:
        config: As given.
        spend: What was used so far.
        limiter: Shared by every request; of clients of one endpoint if given.
        retries: Requests sent again because no answer came.
        empty_replies: Answers that could not be used.
    """

    def __init__(
        self,
        config: ChatConfig,
        *,
        boundary: Boundary = Boundary.USER,
        limiter: Limiter | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises ConfigError if the key's variable is not set or can't be sent."""
        self.config = config
        self.limiter = limiter or Limiter(
            concurrency=config.concurrency,
            requests_per_minute=config.requests_per_minute,
            tokens_per_minute=config.tokens_per_minute,
        )
        self.spend = Spend(config.read_price, config.write_price, config.spend_cap_usd)
        self.retries = 0
        self.empty_replies = 0
        self._boundary = boundary
        self._environ = environ
        self._url = f"{config.base_url.rstrip('/')}/chat/completions"
        self._backoff = Backoff(first_s=config.backoff_s)
        self._connections = Connections(self._url, attempt_s=config.attempt_s, hide=self.hide_key)
        self._absent_since: float | None = None
        self._key()
        REGISTRY.add_service(self)

    def service(self) -> Service:
        """Its queue and its costs, as `turnwise.inflight` shows them."""
        name = f"{self._boundary}: {self.config.model} at {self.config.base_url}"
        return Service(name, self._boundary, self.limiter, self.spend)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        usable: Callable[[str], bool] = has_words,
        as_said: bool = False,
        deadline_s: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> ChatReply:
        """The model's answer to a conversation.

        Args:
            messages: `role` and `content` each, with what belongs to tool calls. Thoughts of an
                answer (`ChatReply.reasoning`) are sent back with it until the next message of the
                user, as endpoints want them in a loop of tools, and not later.
            tools: OpenAI function schemas of the tools that may be called.
            usable: Whether a text says anything; one that does not can't be used, unless one of
                `tools` is called.
            as_said: The answer is what a policy did: it counts without words too, and the words
                of a refusal are its text. `usable` is not asked.
            deadline_s: Instead of the configuration's, if less.
            extra: Further fields of the request, which go before the configuration's.

        Raises:
            SpendCapReached: before anything is sent.
            DeadlineExceeded: no answer in time, or the endpoint asks to wait longer than that.
            ConversationTooLong: the endpoint says that the messages do not fit.
            BoundaryError: no usable answer; the message says what was found.
        """
        payload = self._payload(messages, tools, extra or {})
        call = _Call(
            self,
            payload,
            usable=None if as_said else usable,
            offers_tools=bool(tools),
            patience_s=self.config.patience_s,
        )
        reply = await self._within(call, deadline_s)
        await own_round()
        return reply

    async def check(
        self,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        deadline_s: float = CHECK_DEADLINE_S,
        extra: Mapping[str, Any] | None = None,
    ) -> float:
        """Asks whether the endpoint is there and takes such requests; seconds until it answered.

        One short question with all options that later ones have, whose answer may say anything.
        Where no connection can be made it is not waited for.

        Raises:
            BoundaryError: no answer, or none of a chat; the message says what was found.
        """
        started = asyncio.get_running_loop().time()
        payload = self._payload(GREETING, tools, extra or {})
        call = _Call(self, payload, usable=None, offers_tools=bool(tools), patience_s=0.0)
        await self._within(call, deadline_s)
        return asyncio.get_running_loop().time() - started

    async def close(self) -> None:
        """Closes the connections of this event loop; a later request opens new ones."""
        await self._connections.close()

    def hide_key(self, text: str) -> str:
        """`text` with `[key]` in place of the key."""
        key = self._key()
        return text.replace(key, "[key]") if len(key) >= MIN_SECRET_CHARACTERS else text

    async def _within(self, call: _Call, deadline_s: float | None) -> ChatReply:
        limit_s = self.config.deadline_s
        if deadline_s is not None:
            limit_s = max(0.0, min(limit_s, deadline_s))
        try:
            async with asyncio.timeout(limit_s) as scope:
                async with crossing(self._boundary):
                    return await call.run(scope)
        except TimeoutError as error:
            raise DeadlineExceeded(
                self._boundary,
                f"{self._url}: no answer within {limit_s:.3g} s: "
                f"{call.sent} requests sent{f', the last: {call.last}' if call.last else ''}",
            ) from error

    def _payload(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        extra: Mapping[str, Any],
    ) -> bytes:
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": sendable(_without_old_thoughts(messages)),
        }
        if tools:
            body["tools"] = list(tools)
        if self.config.temperature is not None:
            body["temperature"] = self.config.temperature
        if self.config.max_tokens:
            body["max_tokens"] = self.config.max_tokens
        return msgspec.json.encode({**body, **extra})

    def _key(self) -> str:
        name = self.config.key_env
        if not name:
            return ""
        key = self._environ.get(name, "").strip()
        if not key:
            raise ConfigError(f"key-env: the environment variable {name} is not set")
        if not key.isascii() or not key.isprintable():
            raise ConfigError(f"key-env: {name} holds characters that no HTTP header can")
        return key

    def _headers(self) -> dict[str, str]:
        key = self._key()
        bearer = {"Authorization": f"Bearer {key}"} if key else {}
        return {"Content-Type": "application/json", **bearer}

    def _absent_s(self, what: str) -> float:
        """Seconds since nobody answers, of which the first time is logged."""
        now = asyncio.get_running_loop().time()
        if self._absent_since is None:
            self._absent_since = now
            logger.warning("%s: nobody answers: %s", self._url, what)
        return now - self._absent_since

    def _is_there(self) -> None:
        if self._absent_since is not None:
            self._absent_since = None
            logger.warning("%s: answers again", self._url)


class _Call:
    """One answer being asked for.

    Attributes:
        sent: Requests so far.
        last: What came of the last one that failed.
    """

    def __init__(
        self,
        client: ChatClient,
        payload: bytes,
        *,
        usable: Callable[[str], bool] | None,
        offers_tools: bool,
        patience_s: float,
    ) -> None:
        self.sent = 0
        self.last = ""
        self._client = client
        self._payload = payload
        self._usable = usable
        self._offers_tools = offers_tools
        self._patience_s = patience_s
        self._read = len(payload) / CHARACTERS_PER_TOKEN
        self._written = client.config.max_tokens or _UNBOUNDED_REPLY_TOKENS

    async def run(self, deadline: asyncio.Timeout) -> ChatReply:
        client, empty, failures = self._client, 0, 0
        while True:
            wait_s = None
            try:
                return await self._once()
            except Refused as error:
                kind = ConversationTooLong if isinstance(error, TooLong) else BoundaryError
                raise kind(client._boundary, f"{client._url}: {error}") from None
            except Unusable as error:
                self.last, empty = str(error), empty + 1
                client.empty_replies += 1
                if empty > client.config.max_empty_replies:
                    what = f"{empty} answers that can't be used, the last: {error}"
                    raise self._failure(what) from None
            except NoAnswer as error:
                self.last, wait_s = str(error), error.wait_s
                if isinstance(error, NobodyAnswers):
                    self._be_patient(error)
                client.retries += 1
            REGISTRY.failed(client._boundary, f"{client._url}: {self.last}; asked again")
            failures += 1
            await self._pause(wait_s, failures, deadline)

    def _failure(self, what: str) -> BoundaryError:
        return BoundaryError(self._client._boundary, f"{self._client._url}: {what}")

    def _be_patient(self, error: NobodyAnswers) -> None:
        absent_s = self._client._absent_s(str(error))
        if absent_s >= self._patience_s:
            since = f" for {absent_s:.0f} s" if self._patience_s else ""
            raise self._failure(f"nobody answers{since}: {error}") from None

    async def _pause(self, wait_s: float | None, failures: int, deadline: asyncio.Timeout) -> None:
        pause = wait_s if wait_s is not None else self._client._backoff.pause_s(failures)
        when = deadline.when()
        assert when is not None
        left = when - asyncio.get_running_loop().time()
        if pause >= left:
            raise DeadlineExceeded(
                self._client._boundary,
                f"{self._client._url}: {self.last}; {self.sent} requests sent, the next in "
                f"{pause:.1f} s, but {max(left, 0.0):.1f} s are left",
            )
        await asyncio.sleep(pause)

    async def _once(self) -> ChatReply:
        client = self._client
        async with client.limiter.slot(self._read + self._written) as slot:
            pledged = await client.spend.reserve(
                self._read, self._written, boundary=client._boundary
            )
            try:
                self.sent += 1
                answered = await client._connections.post(self._payload, client._headers())
                client._is_there()
                wait_s = retry_after_s(answered.headers, answered.text)
                self._check_status(answered.status, answered.text, wait_s, slot)
                return self._take(answered.text, slot)
            finally:
                client.spend.release(pledged)

    def _check_status(
        self, status: int | None, text: str, wait_s: float | None, slot: Slot
    ) -> None:
        said = one_line(self._client.hide_key(text), _EXCERPT)
        what = f"{'error' if status is None else f'HTTP {status}'} {said}".rstrip()
        try:
            check_status(status, text, what, wait_s)
        except NoAnswer:
            if status == 429:
                slot.rejected(wait_s)
            raise

    def _take(self, text: str, slot: Slot) -> ChatReply:
        answer = decode(text, self._client.hide_key)
        if (found := read_error(answer)) is not None:
            status, said = found
            self._check_status(status, said, retry_after_s({}, said), slot)
        try:
            reply = read_reply(answer, offers_tools=self._offers_tools)
        except Unusable:
            if (counted := usage(answer)) is not None:
                self._pay(*counted, slot, estimated=False)
            raise
        read, written = usage(answer) or (0, 0)
        estimated = not read or (not written and bool(reply.text))
        if estimated:
            read, written = round(self._read), len(reply.text) // CHARACTERS_PER_TOKEN + 1
        self._pay(read, written, slot, estimated=estimated)
        return self._usable_reply(replace(reply, read_tokens=read, written_tokens=written))

    def _pay(self, read: int, written: int, slot: Slot, *, estimated: bool) -> None:
        spend = self._client.spend
        spend.pay(read, written, estimated=estimated)
        meter.count(self._client._boundary, read, written, spend.price(read, written))
        slot.succeeded(read + written)

    def _usable_reply(self, reply: ChatReply) -> ChatReply:
        if reply.tool_calls:
            return reply
        if self._usable is None:
            return reply if reply.text else replace(reply, text=reply.refusal)
        if self._usable(reply.text):
            return reply
        words = one_line(reply.text or reply.refusal, _EXCERPT)
        what = "a refusal" if reply.refusal and not reply.text else "no words to use"
        raise Unusable(f"finish {reply.finish or 'unknown'!r}, {what}: {words!r}")


def _without_old_thoughts(messages: Sequence[Message]) -> list[Message]:
    """The conversation without what the model thought before the last message of the user."""
    users = [place for place, message in enumerate(messages) if message.get("role") == "user"]
    last = users[-1] if users else 0
    return [
        {name: part for name, part in message.items() if name not in REASONING}
        if place < last
        else message
        for place, message in enumerate(messages)
    ]

"""Frozen models behind an OpenAI-compatible endpoint: customers, judges, experts.

    client = ChatClient(ChatConfig(base_url=URL, model=NAME, key_env="GEMINI_API_KEY"))
    reply = await client.complete([{"role": "user", "content": "Hi"}])
    await client.close()

1. A request that brought no answer (no connection, a broken or slow one, 408, 425, 429, 5xx) is
   sent again after a pause, as often as the deadline allows. An answer is never asked for again
   because of what it says.
2. An answer that says nothing (no JSON, no choice, no text) is asked for again
   `max_empty_replies` times.
3. Everything else fails at once: another status, a prompt too long, a quota used up.
4. Every failure is a `BoundaryError` at the boundary of the client, so that it costs an episode
   and never earns a reward. This is the only layer that retries, and its deadline spans all of it.

The key is read from the environment at each request and kept nowhere; what an endpoint says is
searched for it before it is shown.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import aiohttp
import msgspec
from pydantic import Field, model_validator

from turnwise.config import Config, ConfigError
from turnwise.episode import Boundary, BoundaryError, DeadlineExceeded, crossing
from turnwise.limiter import Limiter, Slot
from turnwise.models.answer import (
    NoAnswer,
    Refused,
    ToolCall,
    TooLong,
    check_status,
    encodable,
    error_status,
    first_choice,
    tool_calls,
    usage,
)
from turnwise.retry import Backoff, retry_after_s
from turnwise.spend import CHARACTERS_PER_TOKEN, Spend

CONNECT_TIMEOUT_S = 15.0
MAX_ANSWER_BYTES = 4 * 2**20
MIN_SECRET_CHARACTERS = 8
"""A shorter key (`EMPTY` for a server of one's own) is a word that answers may hold."""
_UNBOUNDED_REPLY_TOKENS = 4096
_EXCERPT = 300

Message = Mapping[str, Any]
"""`role` and `content`; `tool_calls` of an assistant, `tool_call_id` of a tool."""


class ChatConfig(Config):
    """One model of one endpoint."""

    base_url: str
    """Up to and without `/chat/completions`, such as `http://HOST:30000/v1`."""
    model: str = Field(min_length=1)
    """The model, by its endpoint's name."""
    key_env: str = ""
    """Environment variable that holds the key; without it no key is sent."""
    temperature: float | None = Field(default=1.0, ge=0, le=2)
    """Sampling temperature; none leaves it to the endpoint."""
    max_tokens: int = Field(default=2048, ge=0)
    """At most this many tokens a reply, thinking included; 0 leaves it to the endpoint."""
    deadline_s: float = Field(default=110.0, gt=0)
    """Seconds for a reply, with every repeat and wait."""
    attempt_s: float = Field(default=60.0, gt=0)
    """Seconds for one request."""
    max_empty_replies: int = Field(default=2, ge=0)
    """How often an answer that says nothing is asked for again."""
    backoff_s: float = Field(default=0.5, gt=0)
    """Mean seconds before the first repeat of a request; doubles each time."""
    concurrency: int = Field(default=64, ge=1)
    """Requests under way at most; fewer while the endpoint answers 429."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Requests in any 60 seconds at most."""
    tokens_per_minute: float | None = Field(default=None, gt=0)
    """Tokens read and written in any 60 seconds at most."""
    read_price: float = Field(default=0.0, ge=0)
    """US dollars per million tokens read."""
    write_price: float = Field(default=0.0, ge=0)
    """US dollars per million tokens written."""
    spend_cap_usd: float | None = Field(default=None, gt=0)
    """Nothing is sent that might cost more than this in all."""

    # On the whole, since the error of a single field shows what was given, which may be a secret.
    @model_validator(mode="after")
    def _is_sound(self) -> ChatConfig:
        check_url(self.base_url)
        if self.key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_env):
            raise ValueError("key-env: must be the name of a variable, not the key itself")
        if self.spend_cap_usd is not None and not (self.read_price or self.write_price):
            raise ValueError("spend-cap-usd: needs read-price and write-price")
        return self


def check_url(text: str) -> None:
    """Raises ValueError, without showing it, if `text` is no URL or may hold a secret."""
    try:
        url = urlsplit(text)
    except ValueError:
        url = urlsplit("")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("base-url: must be a URL such as http://HOST:30000/v1")
    if "@" in url.netloc or url.query or url.fragment:
        raise ValueError(
            "base-url: must hold no user, query or fragment; a key goes into the environment"
        )


class ConversationTooLong(BoundaryError):
    """The endpoint refuses a conversation because of its length."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """An answer.

    Attributes:
        text: The words, encodable as UTF-8.
        finish: The endpoint's reason to end it, such as `stop` or `length`; "" if it says none.
        read_tokens, written_tokens: As counted by the endpoint, else estimated.
        tool_calls: In the order in which they were made.
    """

    text: str
    finish: str
    read_tokens: int
    written_tokens: int
    tool_calls: tuple[ToolCall, ...] = ()


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
        empty_replies: Answers that said nothing.
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
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession]
        self._pools = WeakKeyDictionary()
        self._key()

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        usable: Callable[[str], bool] = has_words,
        deadline_s: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> ChatReply:
        """The model's answer to a conversation.

        Args:
            messages: `role` and `content` each, with what belongs to tool calls.
            tools: OpenAI function schemas of the tools that may be called.
            usable: Whether a text says anything; one that does not counts as empty, unless one of
                `tools` is called.
            deadline_s: Instead of the configuration's, if less.
            extra: Further fields of the request, which go before the configuration's.

        Raises:
            SpendCapReached: before anything is sent.
            DeadlineExceeded: no answer in time, or the endpoint asks to wait longer than that.
            ConversationTooLong: the endpoint says that the messages do not fit.
            BoundaryError: no usable answer; the message says what was found.
        """
        payload = self._payload(messages, tools, extra or {})
        call = _Call(self, payload, usable, offers_tools=bool(tools))
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

    async def close(self) -> None:
        """Closes the connections of this event loop; a later request opens new ones."""
        session = self._pools.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def hide_key(self, text: str) -> str:
        """`text` with `[key]` in place of the key."""
        key = self._key()
        return text.replace(key, "[key]") if len(key) >= MIN_SECRET_CHARACTERS else text

    def _payload(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        extra: Mapping[str, Any],
    ) -> bytes:
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": [encodable(message) for message in messages],
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

    def _pool(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(
                    total=self.config.attempt_s, sock_connect=CONNECT_TIMEOUT_S
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._pools[loop]

    async def _send(self, payload: bytes) -> tuple[int, str | None, bytes]:
        """Status, `Retry-After` and body. Raises NoAnswer; Refused if the body is too long."""
        try:
            async with self._pool().post(
                self._url, data=payload, headers=self._headers(), allow_redirects=False
            ) as response:
                body = bytearray()
                async for chunk in response.content.iter_chunked(65536):
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        response.close()
                        raise Refused(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
                return response.status, response.headers.get("Retry-After"), bytes(body)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            what = self.hide_key(f"{type(error).__name__}: {error}".rstrip(": "))
            raise NoAnswer(what) from None


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
        usable: Callable[[str], bool],
        *,
        offers_tools: bool,
    ) -> None:
        self.sent = 0
        self.last = ""
        self._client = client
        self._payload = payload
        self._usable = usable
        self._offers_tools = offers_tools
        self._read = len(payload) / CHARACTERS_PER_TOKEN
        self._written = client.config.max_tokens or _UNBOUNDED_REPLY_TOKENS

    async def run(self, deadline: asyncio.Timeout) -> ChatReply:
        client, empty, failures = self._client, 0, 0
        while True:
            try:
                reply = await self._once()
            except Refused as error:
                kind = ConversationTooLong if isinstance(error, TooLong) else BoundaryError
                raise kind(client._boundary, f"{client._url}: {error}") from None
            except NoAnswer as error:
                self.last, failures = str(error), failures + 1
                await self._pause(error.wait_s, failures, deadline)
                client.retries += 1
                continue
            if isinstance(reply, ChatReply):
                return reply
            self.last, empty, failures = reply, empty + 1, 0
            client.empty_replies += 1
            if empty > client.config.max_empty_replies:
                what = f"{empty} answers without words, the last: {reply}"
                raise BoundaryError(client._boundary, f"{client._url}: {what}")

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

    async def _once(self) -> ChatReply | str:
        """One request: the answer, or what was found where it says nothing."""
        client = self._client
        async with client.limiter.slot(self._read + self._written) as slot:
            pledged = await client.spend.reserve(
                self._read, self._written, boundary=client._boundary
            )
            try:
                self.sent += 1
                status, retry_after, body = await client._send(self._payload)
                text = body.decode("utf-8", "replace")
                self._check_status(status, retry_after, text, slot)
                return self._take(text, slot)
            finally:
                client.spend.release(pledged)

    def _check_status(self, status: int, retry_after: str | None, text: str, slot: Slot) -> None:
        what = f"HTTP {status} {self._excerpt(text)}".rstrip()
        wait_s = retry_after_s(retry_after, text)
        try:
            check_status(status, text, what, wait_s)
        except NoAnswer:
            if status == 429:
                slot.rejected(wait_s)
            raise

    def _take(self, text: str, slot: Slot) -> ChatReply | str:
        try:
            answer = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            return f"no JSON ({error}): {self._excerpt(text)}"
        if (found := error_status(answer)) is not None:
            self._check_status(found[0], None, found[1], slot)
        words, finish = first_choice(answer)
        words = self._client.hide_key(words)
        counted = usage(answer)
        read, written = counted or (round(self._read), len(words) // CHARACTERS_PER_TOKEN + 1)
        self._client.spend.pay(read, written, estimated=counted is None)
        slot.succeeded(read + written)
        calls = self._calls(answer)
        if calls or self._usable(words):
            return ChatReply(words, finish, read, written, calls)
        return f"finish {finish or 'unknown'!r}: {self._excerpt(words or text)}"

    def _calls(self, answer: Any) -> tuple[ToolCall, ...]:
        """The calls of tools; none where none were offered, whatever the model made up."""
        if not self._offers_tools:
            return ()
        hide = self._client.hide_key
        return tuple(
            ToolCall(hide(call.id), hide(call.name), hide(call.arguments))
            for call in tool_calls(answer)
        )

    def _excerpt(self, text: str) -> str:
        return " ".join(self._client.hide_key(text).split())[:_EXCERPT]

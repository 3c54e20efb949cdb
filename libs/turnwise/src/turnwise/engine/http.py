"""JSON over HTTP for one event loop: one pooled session, transport errors retried a few times.

A transport error is a request that brought no answer: no connection, a connection that broke
before the body was complete, or one of the statuses `RETRIED`, by which a server or a router in
front of it says that it did not do the work. Anything else is an answer and is never asked for
again. There is no time limit here: the caller holds the deadline, retries included.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

RETRIED = frozenset({408, 429, 500, 502, 503, 504})
CONNECT_TIMEOUT_S = 10.0
_EXCERPT = 300


class HttpError(Exception):
    """The server gave no usable answer; the message says what was found instead."""


class HttpPool:
    """Keeps connections open between requests. Used from one event loop.

    Attributes:
        retries: Requests sent again so far.
    """

    def __init__(
        self,
        *,
        connections: int = 0,
        attempts: int = 4,
        backoff_s: float = 0.25,
        max_backoff_s: float = 5.0,
    ) -> None:
        """
        Args:
            connections: At most this many at a time; 0 sets no bound.
            attempts: How often a request is sent at most, at least 1.
            backoff_s: Seconds before the first repeat; doubles each time, times 0.5 to 1.5. A
                `Retry-After` of the server goes before it.
            max_backoff_s: No pause is longer.

        Raises:
            ValueError: `attempts` below 1.
        """
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, found {attempts}")
        self._connections = connections
        self._attempts = attempts
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._session: aiohttp.ClientSession | None = None
        self.retries = 0

    async def post(
        self, url: str, payload: object, *, headers: Mapping[str, str] | None = None
    ) -> Any:
        """The decoded answer to a POST of `payload` as JSON.

        Raises:
            HttpError: no answer after all attempts, a status other than 2xx, or no JSON.
        """
        sent = {"Content-Type": "application/json", **(headers or {})}
        return _decode(url, await self._post(url, msgspec.json.encode(payload), sent))

    async def tell(self, url: str, payload: object) -> None:
        """POSTs `payload` as JSON where the status alone is the answer; its body may be empty.

        Raises:
            HttpError: no answer after all attempts, or a status other than 2xx.
        """
        sent = {"Content-Type": "application/json"}
        await self._post(url, msgspec.json.encode(payload), sent)

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        for attempt in range(1, self._attempts + 1):
            try:
                return await self._post_once(url, body, headers)
            except _Transport as error:
                if attempt == self._attempts:
                    raise HttpError(f"{url}: {error.what}, {attempt} times") from error.__cause__
                self.retries += 1
                await asyncio.sleep(self._pause(attempt, error.retry_after_s))
        raise AssertionError("unreachable")

    async def get(self, url: str) -> Any:
        """The decoded answer to a GET. Not repeated.

        Raises:
            HttpError: as `post`.
        """
        try:
            async with self._open().get(url, allow_redirects=False) as response:
                content = _checked(url, response.status, await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise HttpError(f"{url}: {type(error).__name__}: {error}") from error
        return _decode(url, content)

    async def close(self) -> None:
        """Closes every connection; a later request opens the pool again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _post_once(self, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        try:
            async with self._open().post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _Transport(f"{type(error).__name__}: {error}") from error
        if response.status in RETRIED:
            after = _seconds(response.headers.get("Retry-After"))
            raise _Transport(f"HTTP {response.status} {_excerpt(content)}", after)
        return _checked(url, response.status, content)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _pause(self, attempt: int, retry_after_s: float | None) -> float:
        if retry_after_s is not None:
            return min(retry_after_s, self._max_backoff_s)
        pause = self._backoff_s * (1 << (attempt - 1)) * random.uniform(0.5, 1.5)
        return min(pause, self._max_backoff_s)


class _Transport(Exception):
    def __init__(self, what: str, retry_after_s: float | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.retry_after_s = retry_after_s


def _checked(url: str, status: int, content: bytes) -> bytes:
    if not 200 <= status < 300:
        raise HttpError(f"{url}: HTTP {status} {_excerpt(content)}")
    return content


def _decode(url: str, content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(f"{url}: the answer is no JSON ({error}): {_excerpt(content)}") from error


def _excerpt(content: bytes) -> str:
    return " ".join(content[:_EXCERPT].decode("utf-8", "replace").split())


def _seconds(text: str | None) -> float | None:
    """`Retry-After` in its form of seconds; the form of a date counts as none."""
    try:
        seconds = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return seconds if seconds >= 0 else None

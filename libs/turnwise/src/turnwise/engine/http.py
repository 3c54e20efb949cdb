"""JSON over HTTP for one event loop: one pooled session, transport errors retried a few times.

A transport error is a request that brought no answer: no connection, a connection that broke
before the body was complete, or a status that `turnwise.retry` names. Anything else is an answer
and is never asked for again. There is no time limit here: the caller holds the deadline, retries
included. A body is read up to `MAX_BODY_BYTES`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from turnwise.http_body import ENCODINGS, BodyError, read_body
from turnwise.printable import one_line, printable
from turnwise.retry import Backoff, is_transient, retry_after_s
from turnwise.rounds import own_round

CONNECT_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 256 * 2**20
"""Log-probs and experts of a long turn take some megabytes."""
_EXCERPT = 300


class HttpError(Exception):
    """The server gave no usable answer; the message says what was found instead.

    Attributes:
        status: Of HTTP, where that is what was wrong; else 0.
        said: How the body begins that came with it.
    """

    def __init__(self, message: str, *, status: int = 0, said: str = "") -> None:
        super().__init__(message)
        self.status, self.said = status, said


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
            backoff_s: Mean seconds before the first repeat, as of `Backoff`. What the server
                asks to wait goes before it.
            max_backoff_s: No mean is longer, and what the server asks for counts up to it.

        Raises:
            ValueError: `attempts` below 1.
        """
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, found {attempts}")
        self._connections = connections
        self._attempts = attempts
        self._backoff = Backoff(first_s=backoff_s, max_s=max_backoff_s)
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
        content = await self._post(url, msgspec.json.encode(payload), sent)
        await own_round()
        return _decode(url, content)

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
                await asyncio.sleep(self._pause(attempt, error.wait_s))
        raise AssertionError("unreachable")

    async def get(self, url: str) -> Any:
        """The decoded answer to a GET. Not repeated.

        Raises:
            HttpError: as `post`.
        """
        try:
            async with self._open().get(url, allow_redirects=False) as response:
                body = await read_body(response, MAX_BODY_BYTES)
                content = _checked(url, response.status, body)
        except BodyError as error:
            raise HttpError(f"{url}: {error}") from None
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
                content = await read_body(response, MAX_BODY_BYTES)
        except BodyError as error:
            raise HttpError(f"{url}: {error}") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _Transport(f"{type(error).__name__}: {error}") from error
        if is_transient(response.status):
            after = retry_after_s(response.headers)
            raise _Transport(f"HTTP {response.status} {_excerpt(content)}", after)
        return _checked(url, response.status, content)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": ENCODINGS},
                auto_decompress=False,
            )
        return self._session

    def _pause(self, attempt: int, wait_s: float | None) -> float:
        if wait_s is not None:
            return min(wait_s, self._backoff.max_s)
        return self._backoff.pause_s(attempt)


class _Transport(Exception):
    def __init__(self, what: str, wait_s: float | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.wait_s = wait_s


async def reach(url: str, *, deadline_s: float = 60.0) -> None:
    """Whether somebody listens: any answer to a GET will do.

    Raises:
        HttpError: no connection, or no answer in time.
    """
    timeout = aiohttp.ClientTimeout(total=deadline_s, sock_connect=CONNECT_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=False),
        ):
            pass
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        raise HttpError(f"{url}: {printable(what)}") from error


def _checked(url: str, status: int, content: bytes) -> bytes:
    if not 200 <= status < 300:
        said = _excerpt(content)
        raise HttpError(f"{url}: HTTP {status} {said}", status=status, said=said)
    return content


def _decode(url: str, content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(f"{url}: the answer is no JSON ({error}): {_excerpt(content)}") from error


def _excerpt(content: bytes) -> str:
    return one_line(content[: 4 * _EXCERPT].decode("utf-8", "replace"), _EXCERPT)

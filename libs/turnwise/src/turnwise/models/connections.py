"""Connections to one endpoint: a request goes out, status and bounded body come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import aiohttp

from turnwise.http_body import ENCODINGS, BodyError, read_body
from turnwise.models.answer import NoAnswer, Unusable
from turnwise.printable import one_line

CONNECT_TIMEOUT_S = 15.0
MAX_ANSWER_BYTES = 4 * 2**20
_EXCERPT = 300


class NobodyAnswers(NoAnswer):
    """No connection could be made."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str


class Connections:
    """One pool for each event loop; redirects and cookies are not followed."""

    def __init__(self, url: str, *, attempt_s: float, hide: Callable[[str], str]) -> None:
        """
        Args:
            url: Where requests go.
            attempt_s: Seconds for one request.
            hide: Takes out of an error what may not be shown.
        """
        self.url = url
        self._attempt_s = attempt_s
        self._hide = hide
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession]
        self._pools = WeakKeyDictionary()

    async def post(self, payload: bytes, headers: Mapping[str, str]) -> Answered:
        """
        Raises:
            NobodyAnswers: no connection.
            NoAnswer: it broke, or took too long.
            Unusable: the body of an answer is too long or packed otherwise than asked for.
        """
        try:
            async with self._pool().post(
                self.url,
                data=payload,
                headers={"Accept-Encoding": ENCODINGS, **headers},
                allow_redirects=False,
            ) as response:
                try:
                    body = await read_body(response, MAX_ANSWER_BYTES)
                except BodyError as error:
                    if response.ok:
                        raise Unusable(str(error)) from None
                    body = str(error).encode()
                text = body.decode("utf-8", "replace").removeprefix("\ufeff")
                return Answered(response.status, response.headers, text)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NobodyAnswers(self._shown(error)) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NoAnswer(self._shown(error)) from None

    async def close(self) -> None:
        """Closes the connections of this event loop; a later request opens new ones."""
        session = self._pools.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def _shown(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        return one_line(self._hide(text), _EXCERPT)

    def _pool(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(
                    total=self._attempt_s, sock_connect=CONNECT_TIMEOUT_S
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._pools[loop]

"""An agent that runs elsewhere: a service is asked to run it, and answers once it is done.

    POST callback-url    {"base_url": ..., "openai_base_url": ..., "task": ...}
    200                  any JSON: what the reward is computed from

The connection is the sign of life: one that breaks is a lost agent, and at its deadline the agent
is told to end by the connection's end. Nothing is sent twice, since the agent may have begun.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError
from turnwise.http_body import ENCODINGS, BodyError, read_body
from turnwise.printable import one_line

MAX_RESULT_BYTES = 16 * 2**20
CONNECT_TIMEOUT_S = 10.0
_EXCERPT = 300


class Callback:
    """Asks one service. Used from one event loop, until it is closed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": ENCODINGS},
            auto_decompress=False,
        )

    async def run(self, base_url: str, task: Any) -> Any:
        """What the service answers. The caller holds the deadline.

        Raises:
            BoundaryError: at `harness`: no connection, one that broke, a status other than 200, no
                JSON, or more than 16 MiB.
        """
        asked = {"base_url": base_url, "openai_base_url": f"{base_url}/v1", "task": task}
        try:
            async with self._session.post(self._url, json=asked, allow_redirects=False) as response:
                body = await read_body(response, MAX_RESULT_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError, BodyError) as error:
            raise self._wrong(f"{type(error).__name__}: {error}") from error
        if response.status != 200:
            said = one_line(body[: 4 * _EXCERPT].decode(errors="replace"), _EXCERPT)
            raise self._wrong(f"HTTP {response.status} {said}")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"the answer is no JSON: {error}") from error

    async def close(self) -> None:
        """Ends what is under way."""
        await self._session.close()

    def _wrong(self, what: str) -> BoundaryError:
        return BoundaryError(Boundary.HARNESS, f"{self._url}: {what}".rstrip(": "))


def check_callback(url: str, gateway_host: str, public_host: str | None) -> None:
    """
    Raises:
        ConfigError: no URL of HTTP, or a gateway that its host can't reach.
    """
    wrong = f"callback-url {url!r}: give http://HOST:PORT/PATH or https://..."
    try:
        parts = urlsplit(url)
        # A port that is no number, or too large, is said when it is asked for.
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise ConfigError(f"{wrong} ({error})") from None
    if not known or parts.hostname is None:
        raise ConfigError(wrong)
    if is_loopback(gateway_host) and not is_loopback(parts.hostname) and public_host is None:
        raise ConfigError(
            f"callback-url {url}: an agent on {parts.hostname} can't reach a gateway that listens"
            f" on {gateway_host}: give gateway-host, or gateway-public-host for a tunnel to it"
        )


def is_loopback(host: str) -> bool:
    """Whether an address means the machine that uses it."""
    return host == "localhost" or host.startswith("127.") or host == "::1"

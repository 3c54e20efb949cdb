"""The gateway: an HTTP server in front of a policy, one base URL for each rollout.

    async with Gateway() as gateway:
        async with gateway.rollout(policy, rollout) as (url, record):
            ...                                   # the program speaks to url + "/v1"

It listens on this machine alone unless told otherwise. The secret in the URL is the only way to a
rollout; the engine's address is not known to any client. Requests name no address that is spoken
to.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

from aiohttp import web

from turnwise.gateway import chat, messages, responses
from turnwise.gateway.bodies import Bodies
from turnwise.gateway.record import Record
from turnwise.gateway.requests import Head, Refusal, Request
from turnwise.gateway.turns import Bounds, Given
from turnwise.policy import Policy
from turnwise.rollout import Rollout
from turnwise.rounds import own_round

logger = logging.getLogger(__name__)

DIALECTS: Mapping[str, ModuleType] = {
    "/v1/chat/completions": chat,
    "/v1/messages": messages,
    "/v1/responses": responses,
}
KEEPALIVE_S = 5.0
EVERY_ADDRESS = ("0.0.0.0", "::")


class Gateway:
    """Serves rollouts between entering and leaving the block.

    Attributes:
        port: That it listens on.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        public_host: str | None = None,
        max_body_bytes: int = 32 * 2**20,
        max_open: int = 1024,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        """
        Args:
            host, port: To listen on; port 0 takes a free one.
            public_host: By which programs reach it. If None `host`, or where that means every
                address the one that this machine has in its network.
            max_body_bytes: A longer request is refused.
            max_open: Requests at the same time; a further one is asked to come again.
            keepalive_s: Seconds of silence after which a stream says that it lives.
        """
        self._host, self.port = host, port
        self._public_host = public_host or (own_address() if host in EVERY_ADDRESS else host)
        self._max_open, self._keepalive_s = max_open, keepalive_s
        self._open = 0
        self._records: dict[str, Record] = {}
        app = web.Application(client_max_size=max_body_bytes)
        for path in DIALECTS:
            app.router.add_post("/r/{secret}" + path, self._serve)
        app.router.add_get("/r/{secret}/v1/models", self._models)
        app.router.add_post("/r/{secret}/v1/messages/count_tokens", self._count_tokens)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )

    async def __aenter__(self) -> Gateway:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    @asynccontextmanager
    async def rollout(
        self, policy: Policy, rollout: Rollout[Any], bounds: Bounds | None = None
    ) -> AsyncIterator[tuple[str, Record]]:
        """Serves a rollout within the block; yields its URL, without `/v1`, and its record."""
        secret = secrets.token_urlsafe(24)
        record = Record(policy, rollout, bounds or Bounds(), secrets.token_bytes(16))
        self._records[secret] = record
        host = f"[{self._public_host}]" if ":" in self._public_host else self._public_host
        try:
            yield f"http://{host}:{self.port}/r/{secret}", record
        finally:
            del self._records[secret]
            await record.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        dialect: Any = DIALECTS["/" + request.path.split("/", 3)[3]]
        record = self._records.get(request.match_info["secret"])
        if record is None:
            return _refused(dialect, _UNKNOWN)
        if self._open >= self._max_open:
            busy = Refusal(
                429,
                f"{self._open} requests are under way, at most {self._max_open}",
                code="too_many_requests",
                retry_after_s=2,
            )
            return _refused(dialect, busy)
        self._open += 1
        try:
            return await self._answer(request, dialect, record)
        except Refusal as error:
            record.refuse(error)
            return _refused(dialect, error)
        finally:
            self._open -= 1

    async def _answer(self, http: web.Request, dialect: Any, record: Record) -> web.StreamResponse:
        data, bodies = await _data(http), record.bodies
        await own_round()
        request: Request = dialect.read(bodies.fields(data), bodies)
        retry = http.headers.get("x-stainless-retry-count", "0") not in ("", "0")
        if not request.stream:
            given = await record.ask(request, retry=retry)
            body = json.dumps(dialect.answer(request, given.answer)).encode()
            response = web.Response(body=body, content_type="application/json")
            await _deliver(http, response, given)
            return response
        begun: list[Head] = []
        asking = asyncio.ensure_future(record.ask(request, retry=retry, begun=begun.append))
        try:
            return await self._stream(http, dialect, record, request, asking, begun)
        except asyncio.CancelledError:
            if asking.done() and not asking.cancelled() and asking.exception() is None:
                asking.result().lost("the client left")
            raise
        finally:
            asking.cancel()

    async def _stream(
        self,
        http: web.Request,
        dialect: Any,
        record: Record,
        request: Request,
        asking: asyncio.Future[Given],
        begun: list[Head],
    ) -> web.StreamResponse:
        """The whole turn as events. A refusal that comes before the first sign of life has a status
        of its own, a later one is an event."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        sent = 0
        while not (await asyncio.wait([asking], timeout=self._keepalive_s))[0]:
            if not begun:
                # A long history is still being encoded.
                continue
            if not response.prepared:
                await response.prepare(http)
            said = dialect.waiting(request, begun[0], sent)
            await response.write(b"".join(said))
            sent += len(said)
        try:
            given = asking.result()
        except Refusal as error:
            if not response.prepared:
                raise
            record.refuse(error)
            await response.write(dialect.refusal_event(error, sent))
            await response.write_eof()
            return response
        await _deliver(http, response, given, b"".join(dialect.events(request, given.answer, sent)))
        return response

    async def _models(self, request: web.Request) -> web.Response:
        if request.match_info["secret"] not in self._records:
            return _refused(chat, _UNKNOWN)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "turnwise"}
        return web.json_response({"object": "list", "data": [model]})

    async def _count_tokens(self, http: web.Request) -> web.Response:
        """What the prompt of the same request would take; no turn is opened."""
        record = self._records.get(http.match_info["secret"])
        try:
            if record is None:
                raise _UNKNOWN
            bodies = Bodies()
            asked = messages.read(bodies.fields(await _data(http)), bodies)
            found = await record.prompt_tokens(asked)
        except Refusal as error:
            return _refused(messages, error)
        return web.json_response({"input_tokens": found})


def own_address() -> str:
    """The address that this machine sends from to others; nothing is sent. 127.0.0.1 without a
    network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Of the range that is for documents alone (RFC 5737).
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


_UNKNOWN = Refusal(401, "there is no such rollout, or it is over", code="invalid_api_key")


async def _deliver(
    http: web.Request, response: web.StreamResponse, given: Given, body: bytes = b""
) -> None:
    """Writes an answer at once, in one piece with its head if it is not streamed, and says whether
    the connection took all of it."""
    try:
        if not response.prepared:
            await response.prepare(http)
        await response.write_eof(body)
    except (OSError, asyncio.CancelledError):
        given.lost("the connection broke while the answer was sent")
        raise
    if http.transport is None or http.transport.is_closing():
        given.lost("the connection was closed while the answer was sent")
    else:
        given.delivered()


async def _data(http: web.Request) -> bytes:
    try:
        return await http.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise Refusal(413, f"the body is too long: {error.text}", code="body_too_long") from None


def _refused(dialect: Any, error: Refusal) -> web.Response:
    return web.json_response(dialect.refusal(error), status=error.status, headers=error.headers)

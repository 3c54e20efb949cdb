"""An SGLang server and an OpenAI-compatible endpoint on this machine, which misbehave on demand.

    async with FakeSGLang(answer) as server:         # server.url
        server.misbehave = lambda call: status(503) if call.number == 2 else None

    async with FakeChat(lambda messages: "Yes, please.") as endpoint:   # f"{endpoint.url}/v1"
        ...

A misbehaviour gets the request and a function that makes the right answer; it returns what is
sent instead.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

Honest = Callable[[], Awaitable[dict[str, Any]]]
Misbehaviour = Callable[[web.Request, Honest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Call:
    """A request, as it came.

    Attributes:
        number: Counts from 0.
        session: The routing key; "" without one.
        body: The JSON body.
        turn: How often this session has called before.
    """

    number: int
    session: str
    body: Mapping[str, Any]
    turn: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model says: one log-prob per id; finish `stop`, `length` or `abort`."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish: str = "stop"


Answer = Callable[[Call], Awaitable[Turn]]


class _Server:
    """Serves between entering and leaving the block; port 0 takes a free one."""

    def __init__(self, port: int) -> None:
        self.calls: list[Call] = []
        self.misbehave: Callable[[Call], Misbehaviour | None] = lambda call: None
        self.url = ""
        self.port = port
        self._turns: dict[str, int] = {}
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Any:
        app = web.Application(client_max_size=2**30)
        self.add_routes(app.router)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Closes the port and every connection."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        raise NotImplementedError

    async def _serve(
        self, request: web.Request, session: str, honest: Callable[[Call], Awaitable[Any]]
    ) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        turn = self._turns.get(session, 0)
        self._turns[session] = turn + 1
        call = Call(len(self.calls), session, body, turn)
        self.calls.append(call)
        bad = self.misbehave(call)
        if bad is not None:
            return await bad(request, lambda: honest(call))
        return web.json_response(await honest(call))


class FakeSGLang(_Server):
    """Router and worker in one: `/generate`, `/abort_request`, `/workers`, `/v1/loads`.

    Attributes:
        weight_version: Stamped on answers.
        delay_s: Before each answer; an abort ends it.
        slow: The same for a call of its own.
        done: Calls that were answered whole.
        aborts: Abort requests so far.
        running: Requests under way.
        more_meta: Further entries of `meta_info` for a turn after `prompt` tokens.
    """

    def __init__(self, answer: Answer, *, delay_s: float = 0.0, port: int = 0) -> None:
        super().__init__(port)
        self._answer = answer
        self.delay_s = delay_s
        self.slow: Callable[[Call], float] = lambda call: self.delay_s
        self.done: list[Call] = []
        self.weight_version = "1"
        self.aborts = 0
        self.more_meta: Callable[[Call, Turn], Mapping[str, Any]] = lambda call, turn: {}
        self._abort = asyncio.Event()
        self.running = 0
        self._prefix: dict[str, list[int]] = {}

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/generate", self._generate)
        router.add_post("/abort_request", self._abort_all)
        router.add_get("/workers", self._workers)
        router.add_get("/v1/loads", self._loads)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.running += 1
        try:
            session = request.headers.get("X-SMG-Routing-Key", "")
            return await self._serve(request, session, self._sample)
        finally:
            self.running -= 1

    async def _sample(self, call: Call) -> dict[str, Any]:
        prompt = list(call.body["input_ids"])
        turn = await self._answer(call)
        room = call.body["sampling_params"]["max_new_tokens"]
        if len(turn.ids) > room:
            turn = Turn(turn.ids[:room], turn.logprobs[:room], "length")
        delay_s = self.slow(call)
        if delay_s and await self._aborted_within(delay_s):
            half = len(turn.ids) // 2
            turn = Turn(turn.ids[:half], turn.logprobs[:half], "abort")
        else:
            self.done.append(call)
        cached = _common(self._prefix.get(call.session, []), prompt)
        self._prefix[call.session] = [*prompt, *turn.ids]
        pairs = zip(turn.logprobs, turn.ids, strict=True)
        return {
            "text": "",
            "output_ids": list(turn.ids),
            "meta_info": {
                "id": f"{call.number:x}",
                "finish_reason": {"type": turn.finish},
                "prompt_tokens": len(prompt),
                "completion_tokens": len(turn.ids),
                "cached_tokens": cached,
                "weight_version": self.weight_version,
                "e2e_latency": self.delay_s,
                "output_token_logprobs": [[logprob, token, None] for logprob, token in pairs],
                **self.more_meta(call, turn),
            },
        }

    async def _aborted_within(self, delay_s: float) -> bool:
        try:
            await asyncio.wait_for(self._abort.wait(), delay_s)
        except TimeoutError:
            return False
        return True

    async def _abort_all(self, request: web.Request) -> web.Response:
        self.aborts += 1
        self._abort.set()
        self._abort = asyncio.Event()
        return web.Response()

    async def _workers(self, request: web.Request) -> web.Response:
        return web.json_response({"workers": [{"url": self.url}]})

    async def _loads(self, request: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_reqs": self.running}]})


class FakeChat(_Server):
    """An OpenAI-compatible endpoint: `say(messages)` is the reply."""

    def __init__(
        self,
        say: Callable[[list[dict[str, Any]]], str],
        *,
        delay_s: float = 0.0,
        port: int = 0,
    ) -> None:
        super().__init__(port)
        self._say = say
        self.delay_s = delay_s

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/chat/completions", self._complete)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, request.headers.get("X-Session", ""), self._reply)

    async def _reply(self, call: Call) -> dict[str, Any]:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        text = self._say(list(call.body["messages"]))
        return {
            "id": f"chat-{call.number}",
            "object": "chat.completion",
            "model": call.body.get("model", ""),
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": text},
                }
            ],
            "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30},
        }


class FakeRetrieval(_Server):
    """A server of documents: `POST /retrieve`.

    Attributes:
        documents: What every query finds, best first.
    """

    def __init__(self, documents: Sequence[Mapping[str, Any]], *, port: int = 0) -> None:
        super().__init__(port)
        self.documents = documents

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/retrieve", self._retrieve)

    async def _retrieve(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, "", self._hits)

    async def _hits(self, call: Call) -> list[list[dict[str, Any]]]:
        shown = self.documents[: call.body["topk"]]
        hits = [{"document": dict(one), "score": 1 / n} for n, one in enumerate(shown, start=1)]
        return [hits for _ in call.body["queries"]]


def in_a_thread(server: FakeSGLang | FakeChat | FakeRetrieval) -> None:
    """Serves as long as the process lives; returns when the port is open."""
    started = threading.Event()

    async def serve() -> None:
        async with server:
            started.set()
            await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    started.wait()


def status(code: int, text: str = "", **headers: str) -> Misbehaviour:
    """A bare status; `Retry_After="1"` gives a header."""

    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=code, text=text, headers=named)

    return send


def body(content: bytes, content_type: str = "application/json") -> Misbehaviour:
    """These bytes with status 200."""

    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        return web.Response(body=content, content_type=content_type)

    return send


def edit(change: Callable[[dict[str, Any]], Any]) -> Misbehaviour:
    """The right answer, changed in place; or what `change` returns, if that is not None."""

    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        answer = await honest()
        changed = change(answer)
        text = json.dumps(answer if changed is None else changed)
        return web.Response(text=text, content_type="application/json")

    return send


def hang(seconds: float = 3600.0) -> Misbehaviour:
    """The right answer, much too late."""

    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return web.json_response(await honest())

    return send


def hang_in_body(seconds: float = 3600.0) -> Misbehaviour:
    """Headers at once, and the body much too late."""

    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 1000
        await response.prepare(request)
        await response.write(b"{")
        await asyncio.sleep(seconds)
        return response

    return send


def disconnect(*, reset: bool = False) -> Misbehaviour:
    """No answer: the connection closes, or is reset."""

    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        assert request.transport is not None
        if reset:
            request.transport.abort()
        else:
            request.transport.close()
        return web.Response()

    return send


def cut(share: float = 0.5) -> Misbehaviour:
    """The right headers and a part of the body, then the connection closes."""

    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        content = json.dumps(await honest()).encode()
        response = web.StreamResponse()
        response.content_length = len(content)
        await response.prepare(request)
        await response.write(content[: int(len(content) * share)])
        assert request.transport is not None
        request.transport.close()
        return response

    return send


def _common(old: list[int], new: list[int]) -> int:
    count = 0
    for left, right in zip(old, new, strict=False):
        if left != right:
            break
        count += 1
    return count

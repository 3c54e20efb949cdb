"""Users in front of an endpoint on this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from taubench import Task
from taubench.users import UserConfig, UserMaker

Messages = list[dict[str, str]]


def task(instruction: str = "You are Mia. You want to cancel order #W1.", index: int = 0) -> Task:
    return Task("retail", "mine", index, "mia_li_1", instruction, ())


@dataclass
class Endpoint:
    """Answers with `say`; a reply that is not a string is the status of an answer without words.

    Attributes:
        asked: The messages of each request.
        url: Without a path.
    """

    say: Callable[[Messages], str | int | None]
    asked: list[Messages] = field(default_factory=list)
    url: str = ""
    delay_s: float = 0.0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        messages = json.loads(await request.read())["messages"]
        self.asked.append(messages)
        await asyncio.sleep(self.delay_s)
        said = self.say(messages)
        if isinstance(said, int):
            return web.Response(status=said)
        choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 20, "completion_tokens": 10}
        return web.json_response({"choices": [choice], "usage": usage})


def in_turn(*replies: str | int | None) -> Callable[[Messages], str | int | None]:
    """Each reply once, then the last one for good."""
    left = list(replies)
    return lambda messages: left.pop(0) if len(left) > 1 else left[0]


@asynccontextmanager
async def serving(say: Callable[[Messages], Any], delay_s: float = 0.0) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(say, delay_s=delay_s)
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", endpoint.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield endpoint
    finally:
        await runner.cleanup()


@asynccontextmanager
async def users_with(
    strategy: str, *replies: str | int | None, **options: Any
) -> AsyncIterator[tuple[UserMaker, Endpoint]]:
    """Users of a strategy, and the endpoint that gives these replies in turn."""
    async with serving(in_turn(*replies)) as endpoint:
        users = UserMaker(config(strategy, endpoint.url, **options))
        try:
            yield users, endpoint
        finally:
            await users.close()


def config(strategy: str, url: str, **options: Any) -> UserConfig:
    settings = {"model": "m", "key_env": "", "backoff_s": 0.01, "deadline_s": 10.0, **options}
    return UserConfig(strategy=strategy, base_url=f"{url}/v1", **settings)


def said(messages: Sequence[dict[str, str]], role: str) -> list[str]:
    return [message["content"] for message in messages if message["role"] == role]

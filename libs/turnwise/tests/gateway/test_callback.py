"""An agent that a service runs: asked once, held to its deadline, blamed for what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from turnwise.config import ConfigError
from turnwise.episode import Boundary, Episode
from turnwise.gateway.method import Harness, HarnessOptions
from turnwise.method import Services, play
from turnwise.rows import Row
from turnwise.testing import ScriptedEngine, byte_policy, fail, say

from gateway.client import USER, rollout


class Called(Harness[HarnessOptions, str]):
    """Its agent is elsewhere."""

    def task(self, row: Row) -> str:
        return str(row.prompt)

    def describe(self, task: str) -> Any:
        return {"text": task}

    def reward(self, task: str, result: Any) -> float:
        return float(result["words"] == "one")


Agent = Callable[[dict[str, Any]], Awaitable[web.StreamResponse]]


async def asking(asked: dict[str, Any]) -> web.Response:
    """Asks once and answers with the words."""
    assert asked["task"] == {"text": "t"} and asked["openai_base_url"] == asked["base_url"] + "/v1"
    async with aiohttp.ClientSession() as http:
        url = f"{asked['openai_base_url']}/chat/completions"
        async with http.post(url, json={"messages": [USER]}) as answer:
            said = await answer.json()
            if answer.status != 200:
                return web.json_response({"words": "none"})
            return web.json_response({"words": said["choices"][0]["message"]["content"]})


@asynccontextmanager
async def service(agent: Agent) -> AsyncIterator[str]:
    async def serve(request: web.Request) -> web.StreamResponse:
        return await agent(await request.json())

    app = web.Application()
    app.router.add_post("/run", serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/run"
    await runner.cleanup()


async def run(url: str, *script: Any, **options: Any) -> Episode:
    method = Called(HarnessOptions(callback_url=url, **options))
    await method.open(Services())
    try:
        return await play(method, rollout(), byte_policy(ScriptedEngine(script)))
    finally:
        await method.close()


async def test_a_service_is_given_the_base_url_and_the_task_and_its_answer_is_graded() -> None:
    async with service(asking) as url:
        episode = await run(url, say("one"))
        assert episode.ending.label == "finished" and episode.score == 1.0
        assert episode.segments[0].trained_tokens == 4


async def _breaks(asked: dict[str, Any]) -> web.Response:
    return web.Response(status=500, text="a bug of the agent")


async def _redirects(asked: dict[str, Any]) -> web.Response:
    return web.Response(status=302, headers={"Location": "/elsewhere"})


async def _mumbles(asked: dict[str, Any]) -> web.Response:
    return web.Response(text="{no json")


async def _does_nothing(asked: dict[str, Any]) -> web.Response:
    return web.json_response({"words": "one"})


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (_breaks, "HTTP 500 a bug of the agent"),
        (_redirects, "HTTP 302"),
        (_mumbles, "no JSON"),
        (_does_nothing, "asked for no turn"),
    ],
)
async def test_a_service_that_fails_is_lost_and_never_a_zero(agent: Agent, said: str) -> None:
    async with service(agent) as url:
        episode = await run(url)
        assert episode.ending.boundary is Boundary.HARNESS and episode.score is None
        assert said in str(episode.ending.error)


async def test_a_service_that_is_not_there_is_lost() -> None:
    async with service(asking) as url:
        pass
    episode = await run(url)
    assert episode.ending.boundary is Boundary.HARNESS and url in str(episode.ending.error)


async def test_a_service_that_hangs_is_lost_at_its_deadline_and_its_agent_told_to_end() -> None:
    ended = asyncio.Event()

    async def hangs(asked: dict[str, Any]) -> web.Response:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        raise AssertionError("unreachable")

    async with service(hangs) as url:
        episode = await run(url, harness_deadline_s=0.05)
        assert episode.ending.boundary is Boundary.HARNESS
        assert str(episode.ending.error).startswith("deadline: ")
        async with asyncio.timeout(60):
            await ended.wait()


async def test_a_dead_engine_is_the_engines_whatever_the_service_answers() -> None:
    async with service(asking) as url:
        episode = await run(url, fail("gone"))
        assert episode.ending.boundary is Boundary.ENGINE and episode.score is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"callback_url": "agents:8000"}, "http://HOST:PORT"),
        ({"callback_url": "file:///etc"}, "http://HOST:PORT"),
        ({"callback_url": "http://[agents/run"}, "http://HOST:PORT"),
        ({"callback_url": "http://agents:99999/run"}, "http://HOST:PORT"),
        ({"callback_url": "http://agents:8000/run"}, "give gateway-host"),
    ],
)
def test_a_callback_that_could_not_work_is_refused_at_once(options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Called(HarnessOptions(**options))
    Called(HarnessOptions(callback_url="http://agents:8000/run", gateway_host="0.0.0.0"))

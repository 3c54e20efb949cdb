"""Who may ask, how much, and what is refused how."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from turnwise.gateway import Bounds, Gateway
from turnwise.testing import ScriptedEngine, byte_policy, call, say

from gateway.client import TOOLS, USER, Client, events, rollout, serving


async def refused(client: Client, body: Any) -> tuple[int, str]:
    status, headers, data = await client.post("chat/completions", body)
    assert headers["x-should-retry"] == "false"
    return status, json.loads(data)["error"]["param"] or ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2), ("stop", ["x", ""]), ("stop", 5), ("stop", ["x"] * 17), ("logit_bias", {"5": 1}),
        ("presence_penalty", 0.5), ("top_logprobs", 2), ("logprobs", "x"),
        ("parallel_tool_calls", False),
        ("response_format", {"type": "json_object"}), ("max_tokens", -1), ("max_tokens", True),
        ("messages", []), ("messages", "hi"), ("tools", {"a": 1}), ("tool_choice", 5),
        ("stream", "yes"),
    ],
)  # fmt: skip
async def test_what_can_not_be_served_exactly_is_refused_by_name(field: str, value: Any) -> None:
    async with serving("never") as client:
        assert await refused(client, {"messages": [USER], field: value}) == (400, field)
        assert client.engine.calls == [] and client.record.metrics()["refused"] == 1


async def test_a_clients_temperature_gives_way_to_the_runs_and_is_counted() -> None:
    async with serving("one") as client:
        await client.chat([USER], temperature=0.0, seed=3, user="u")
        (made,) = client.engine.calls
        assert made.params.temperature == 1.0 and made.params.seed != 3
        metrics = client.record.metrics()
        assert metrics["overridden/temperature"] == metrics["overridden/seed"] == 1
        assert metrics["ignored/user"] == 1


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "robot", "content": "x"},
        {"role": "user", "content": 5},
        {"role": "user", "content": "\ud800"},
        {"role": "tool", "content": "x"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": 5}}]},
        5,
    ],
)
async def test_a_message_that_can_not_be_shown_is_refused_with_its_place(message: Any) -> None:
    async with serving("never") as client:
        status, field = await refused(client, {"messages": [USER, message]})
        assert status == 400 and field.startswith("messages[1]")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'"x"', b"5"])
async def test_a_body_that_is_no_object_is_a_400(body: bytes) -> None:
    async with serving("never") as client:
        assert (await refused(client, body))[0] == 400


async def test_a_history_that_ends_with_the_assistant_is_refused() -> None:
    async with serving("never") as client:
        body = {"messages": [USER, {"role": "assistant", "content": "x"}]}
        assert (await refused(client, body))[0] == 400


async def test_long_bodies_are_refused() -> None:
    async with serving("never", max_body_bytes=1000) as client:
        assert (await refused(client, {"messages": [USER] * 100}))[0] == 413


async def test_a_wrong_secret_is_refused() -> None:
    async with serving("one") as client:
        good = client.url
        client.url = good[:-4] + "AAAA"
        assert (await refused(client, {"messages": [USER]}))[0] == 401
        client.url = good.rsplit("/", 1)[0]
        status, _, _ = await client.post("chat/completions", {"messages": [USER]})
        assert status == 404
        assert client.record.metrics()["requests"] == 0


async def test_a_rollout_that_is_over_is_refused_and_its_record_stays() -> None:
    engine = ScriptedEngine([say("one"), say("two")])
    policy = byte_policy(engine)
    async with Gateway() as gateway, aiohttp.ClientSession() as http:
        async with gateway.rollout(policy, rollout()) as (url, over):
            await Client(http, url, over, engine).chat([USER])
        kept = over.metrics()
        async with gateway.rollout(policy, rollout()) as (other, beside):
            assert other != url
            assert (await refused(Client(http, url, over, engine), {"messages": [USER]}))[0] == 401
            assert over.metrics() == kept and not beside.metrics()["requests"]


async def test_it_listens_on_this_machine_alone() -> None:
    async with serving("one") as client:
        assert client.url.startswith("http://127.0.0.1:")
    async with Gateway(public_host="10.0.0.1") as gateway:
        assert gateway.port > 0


async def test_too_many_requests_at_once_are_asked_to_come_again() -> None:
    slow = [say("x", delay_s=3600)] * 2
    async with serving(*slow, bounds=Bounds(max_open=1, grace_s=0)) as client:
        asking = asyncio.create_task(client.chat([USER]))
        while not client.engine.calls:
            await asyncio.sleep(0.01)
        status, headers, _ = await client.post("chat/completions", {"messages": [USER, USER]})
        assert status == 429 and headers["x-should-retry"] == "true" and headers["Retry-After"]
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_stream_says_what_an_answer_says() -> None:
    text = "I look." + call("look", at="a") + call("look", at="b")
    async with serving(text) as client:
        body = {"messages": [USER], "tools": TOOLS}
        _, _, whole = await client.post("chat/completions", body)
        more = {"stream": True, "stream_options": {"include_usage": True}}
        mark = {"x-stainless-retry-count": "1"}
        _, headers, data = await client.post("chat/completions", {**body, **more}, headers=mark)
        assert headers["Content-Type"] == "text/event-stream" and len(client.engine.calls) == 1
        *chunks, usage, end = events(data)
        answer = json.loads(whole)
        assert end == "[DONE]" and usage["usage"] == answer["usage"] and not usage["choices"]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        message = answer["choices"][0]["message"]
        assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
        calls = [one for delta in deltas for one in delta.get("tool_calls", ())]
        assert [one.pop("index") for one in calls] == [0, 1] and calls == message["tool_calls"]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_models_are_listed() -> None:
    async with serving("x") as client, client.http.get(f"{client.url}/v1/models") as answer:
        assert (await answer.json())["data"][0]["id"] == "policy"

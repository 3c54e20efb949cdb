"""The chat client against an endpoint on this machine that misbehaves."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web
from turnwise.episode import Boundary, BoundaryError, DeadlineExceeded
from turnwise.models.answer import ChatReply, ToolCall
from turnwise.models.client import ChatClient
from turnwise.models.config import ChatConfig
from turnwise.models.connections import MAX_ANSWER_BYTES
from turnwise.spend import SpendCapReached
from turnwise.testing.servers import (
    FakeChat,
    Honest,
    Misbehaviour,
    cut,
    disconnect,
    edit,
    hang,
    hang_in_body,
    status,
)

from .misbehaving import CALL, HELLO, TOOLS, always, endpoint


def drip(pause_s: float) -> Misbehaviour:
    """The right answer, byte by byte."""

    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for byte in json.dumps(await honest()).encode():
            await response.write(bytes([byte]))
            await asyncio.sleep(pause_s)
        return response

    return send


def calling(words: str | None) -> Misbehaviour:
    """An answer with a tool call beside the words."""
    return edit(
        lambda answer: answer["choices"][0]["message"].update(content=words, tool_calls=[CALL])
    )


async def test_a_call_of_a_tool_that_was_offered_is_an_answer() -> None:
    async with endpoint(calling(None)) as (client, server):
        reply = await client.complete(HELLO, tools=TOOLS)
    assert (reply.text, reply.tool_calls) == ("", (ToolCall("c1", "find", "{}"),))
    assert server.calls[0].body["tools"] == TOOLS and len(server.calls) == 1


async def test_a_call_where_no_tool_was_offered_says_nothing_and_is_asked_for_again() -> None:
    async with endpoint(calling(None), calling(None)) as (client, server):
        reply = await client.complete(HELLO)
    assert (reply.text, reply.tool_calls) == ("I want to cancel.", ())
    assert len(server.calls) == 3 and client.empty_replies == 2
    async with endpoint(*always(calling(""))) as (client, _):
        with pytest.raises(BoundaryError, match="3 answers that can't be used"):
            await client.complete(HELLO)


async def test_words_beside_a_call_of_a_tool_that_was_not_offered_are_the_answer() -> None:
    async with endpoint(calling("Goodbye.")) as (client, _):
        reply = await client.complete(HELLO)
    assert (reply.text, reply.tool_calls) == ("Goodbye.", ())


async def test_an_answer_comes_with_its_tokens() -> None:
    async with endpoint(read_price=1.0, write_price=2.0) as (client, server):
        reply = await client.complete(HELLO)
    assert reply == ChatReply("I want to cancel.", "stop", 20, 10)
    (call,) = server.calls
    assert call.body == {"model": "m", "messages": HELLO, "temperature": 1.0, "max_tokens": 2048}
    assert client.spend.usd == pytest.approx((20 + 2 * 10) / 1e6)
    assert client.spend.estimated == 0


async def test_options_left_to_the_endpoint_are_not_sent() -> None:
    async with endpoint(temperature=None, max_tokens=0) as (client, server):
        await client.complete(HELLO)
    assert set(server.calls[0].body) == {"model", "messages"}


@pytest.mark.parametrize(
    "bad",
    [
        status(429),
        status(429, Retry_After="0"),
        status(408),
        status(500),
        status(502, "<html>bad gateway"),
        status(503, "overloaded"),
        status(529),
        disconnect(),
        disconnect(reset=True),
        cut(),
        edit(lambda answer: {"error": {"code": 503, "message": "upstream is busy"}}),
        edit(lambda answer: answer.update(error={"code": "502", "message": "upstream"})),
        status(429, "Too many tokens, please wait before trying again."),
        status(503, "No server with the requested context window is free"),
        status(500, "maximum context length is 8192 tokens"),
        edit(lambda answer: {"error": {"code": 429, "message": "too many input tokens"}}),
        status(503, "x" * (MAX_ANSWER_BYTES + 1)),
    ],
)
async def test_what_brought_no_answer_is_sent_again(bad: Misbehaviour) -> None:
    async with endpoint(bad, bad) as (client, server):
        reply = await client.complete(HELLO)
    assert reply.text == "I want to cancel."
    assert len(server.calls) == 3
    assert client.retries == 2
    assert client.spend.requests == 1, "only an answer is paid for"


@pytest.mark.parametrize("bad", [hang(), hang_in_body(), drip(0.05)])
async def test_a_request_that_takes_too_long_is_sent_again(bad: Misbehaviour) -> None:
    async with endpoint(bad, attempt_s=0.2) as (client, server):
        assert (await client.complete(HELLO)).text == "I want to cancel."
    assert len(server.calls) == 2


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (status(401, "no such key"), "HTTP 401 no such key"),
        (status(404), "HTTP 404"),
        (status(422, "temperature must be 1"), "temperature must be 1"),
        (status(302, Location="http://elsewhere.invalid/"), "HTTP 302"),
        (status(400, '{"error": {"code": "context_length_exceeded"}}'), "too long for the model"),
        (status(413, "the prompt is too long"), "too long for the model"),
        (status(429, '{"error": {"code": "insufficient_quota"}}'), "quota of the key is used up"),
        (edit(lambda answer: {"error": {"code": 404, "message": "no model m"}}), "no model m"),
        (edit(lambda answer: {"error": {"code": "insufficient_quota"}}), "quota of the key"),
    ],
)
async def test_what_will_never_be_answered_is_not_sent_again(bad: Misbehaviour, said: str) -> None:
    async with endpoint(*always(bad)) as (client, server):
        with pytest.raises(BoundaryError, match=said) as caught:
            await client.complete(HELLO)
    assert len(server.calls) == 1
    assert caught.value.boundary is Boundary.USER
    assert client.spend.usd == 0


async def test_text_that_is_no_unicode_is_sent_all_the_same() -> None:
    async with endpoint() as (client, server):
        await client.complete([{"role": "user", "content": "a\ud800b"}])
    assert server.calls[0].body["messages"][0]["content"] == "a?b"


async def test_the_deadline_spans_all_repeats_and_says_what_happened() -> None:
    async with endpoint(*always(status(503, "busy")), deadline_s=0.6) as (client, server):
        with pytest.raises(DeadlineExceeded, match="HTTP 503 busy") as caught:
            await client.complete(HELLO)
    assert len(server.calls) > 1
    assert "requests sent" in str(caught.value)


async def test_an_endpoint_that_hangs_ends_at_the_deadline() -> None:
    async with endpoint(hang(), deadline_s=0.3) as (client, _):
        with pytest.raises(DeadlineExceeded, match=r"no answer within 0\.3 s: 1 requests sent"):
            await client.complete(HELLO)


async def test_a_deadline_of_the_caller_holds_if_it_is_shorter() -> None:
    async with endpoint(hang()) as (client, _):
        with pytest.raises(DeadlineExceeded, match=r"within 0\.2 s"):
            await client.complete(HELLO, deadline_s=0.2)


@pytest.mark.parametrize("as_date", [False, True])
async def test_a_wait_beyond_the_deadline_is_not_waited_for(as_date: bool) -> None:
    when = datetime.now(UTC) + timedelta(hours=1)
    value = format_datetime(when, usegmt=True) if as_date else "3600"
    async with endpoint(status(429, Retry_After=value)) as (client, server):
        async with asyncio.timeout(10):
            with pytest.raises(DeadlineExceeded, match="but .* s are left"):
                await client.complete(HELLO)
    assert len(server.calls) == 1


async def test_retry_after_is_kept() -> None:
    times: list[float] = []

    def stamp(bad: Misbehaviour) -> Misbehaviour:
        async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
            times.append(asyncio.get_running_loop().time())
            return await bad(request, honest)

        return send

    again = stamp(edit(lambda answer: None))
    async with endpoint(stamp(status(429, Retry_After="0.5")), again) as (client, _):
        await client.complete(HELLO)
    assert times[1] - times[0] >= 0.45


def nobody(**options: Any) -> ChatClient:
    settings = {"model": "m", "backoff_s": 0.01, **options}
    config = ChatConfig(base_url=f"http://127.0.0.1:{free_port()}/v1", **settings)
    return ChatClient(config, boundary=Boundary.JUDGE)


async def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    client = nobody(patience_s=0.2)
    with pytest.raises(BoundaryError, match=r"nobody answers for \d+ s: .*127.0.0.1") as caught:
        await client.complete(HELLO)
    assert caught.value.boundary is Boundary.JUDGE
    assert not isinstance(caught.value, DeadlineExceeded)
    assert client.retries >= 1
    assert sum("nobody answers" in line for line in caplog.messages) == 1, "said once, at once"
    client.retries = 0
    with pytest.raises(BoundaryError, match="nobody answers"):
        await client.complete(HELLO)
    assert client.retries == 0, "the next question finds out that it was waited for"
    await client.close()


async def test_the_check_does_not_wait_for_an_endpoint_that_is_not_there() -> None:
    client = nobody(patience_s=3600.0)
    with pytest.raises(BoundaryError, match="nobody answers: ClientConnectorError"):
        await client.check()
    assert client.retries == 0
    await client.close()


async def test_an_endpoint_that_comes_back_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    client = nobody(patience_s=60.0, backoff_s=0.02)
    asked = asyncio.create_task(client.complete(HELLO))
    while not client.retries:
        await asyncio.sleep(0.01)
    port = int(client.config.base_url.split(":")[2].split("/")[0])
    async with FakeChat(lambda messages: "yes", port=port):
        assert (await asked).text == "yes"
        await client.close()
    assert "answers again" in caplog.text


async def test_the_check_sends_what_later_questions_have() -> None:
    async with endpoint() as (client, server):
        assert await client.check(tools=TOOLS, extra={"top_p": 0.5}) >= 0
    (call,) = server.calls
    assert (call.body["tools"], call.body["top_p"]) == (TOOLS, 0.5)
    assert (call.body["temperature"], call.body["max_tokens"]) == (1.0, 2048)


def thinking(name: str) -> Misbehaviour:
    def change(answer: dict[str, Any]) -> None:
        answer["choices"][0]["message"].update(
            {"content": None, name: "I should look.", "tool_calls": [{**CALL, "extra_content": 7}]}
        )

    return edit(change)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_thoughts_go_back_within_a_loop_of_tools_and_no_further(name: str) -> None:
    async with endpoint(thinking(name)) as (client, server):
        reply = await client.complete(HELLO, tools=TOOLS)
        assert reply.reasoning == {name: "I should look."}
        assert reply.tool_calls[0].more == {"extra_content": 7}
        calls = {"role": "assistant", "content": "", "tool_calls": [CALL], **reply.reasoning}
        loop = [*HELLO, calls, {"role": "tool", "tool_call_id": "c1", "content": "found"}]
        await client.complete(loop, tools=TOOLS)
        await client.complete(
            [*loop, {"role": "assistant", "content": "Done."}, *HELLO], tools=TOOLS
        )
    within, later = server.calls[1].body["messages"], server.calls[2].body["messages"]
    assert within[1][name] == "I should look."
    assert name not in later[1] and later[1]["tool_calls"] == [CALL]


async def test_many_429_slow_all_episodes_down_and_every_one_is_answered() -> None:
    async with FakeChat(lambda messages: "yes", delay_s=0.01) as server:
        running = most = 0

        def crowded(call: Any) -> Misbehaviour | None:
            async def count(request: web.Request, honest: Honest) -> web.StreamResponse:
                nonlocal running, most
                running += 1
                try:
                    if running > 6:
                        return web.Response(status=429)
                    answer = await honest()
                    most = max(most, running)
                    return web.json_response(answer)
                finally:
                    running -= 1

            return count

        server.misbehave = crowded
        config = ChatConfig(base_url=f"{server.url}/v1", model="m", backoff_s=0.02, concurrency=32)
        client = ChatClient(config)
        replies = await asyncio.gather(*(client.complete(HELLO) for _ in range(96)))
        await client.close()
    assert [reply.text for reply in replies] == ["yes"] * 96
    assert client.limiter.rejections > 0
    assert client.limiter.concurrency < 32
    assert len(server.calls) < 96 * 3


async def test_the_cap_ends_in_a_clear_error_before_anything_is_sent() -> None:
    options: dict[str, Any] = {
        "read_price": 0.0, "write_price": 1.0, "max_tokens": 100, "spend_cap_usd": 0.00025
    }  # fmt: skip
    async with endpoint(**options) as (client, server):
        results = await asyncio.gather(
            *(client.complete(HELLO) for _ in range(20)), return_exceptions=True
        )
        # 10 tokens a reply and up to 100 set aside for the next.
        for _ in range(40):
            try:
                await client.complete(HELLO)
            except SpendCapReached as error:
                last = error
        sent = len(server.calls)
        with pytest.raises(SpendCapReached, match="the spend cap of"):
            await client.complete(HELLO)
    # Two fit at a time, and fifteen after each other: those under way are waited for.
    assert sum(isinstance(result, ChatReply) for result in results) in (15, 16)
    assert any(isinstance(result, SpendCapReached) for result in results)
    assert last.boundary is Boundary.USER
    assert len(server.calls) == sent
    assert 0.00014 < client.spend.usd <= 0.00025


@pytest.mark.parametrize("bad", [hang(), hang_in_body(), status(503), None])
async def test_cancelling_leaks_no_task_and_no_socket(bad: Misbehaviour | None) -> None:
    async with FakeChat(lambda messages: "x") as server:
        server.misbehave = lambda call: bad
        config = ChatConfig(base_url=f"{server.url}/v1", model="m", concurrency=4)
        client = ChatClient(config)
        await asyncio.gather(client.complete(HELLO, deadline_s=0.2), return_exceptions=True)
        await client.close()
        await asyncio.sleep(0.05)
        tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        asked = [asyncio.create_task(client.complete(HELLO)) for _ in range(12)]
        await asyncio.sleep(0.1)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert client.limiter.running == client.limiter.waiting == 0
        assert client.spend.pledged_usd == 0
        await client.close()
        for _ in range(100):
            if len(asyncio.all_tasks()) <= tasks and len(os.listdir("/proc/self/fd")) <= files:
                break
            await asyncio.sleep(0.02)
        assert len(asyncio.all_tasks()) <= tasks
        assert len(os.listdir("/proc/self/fd")) <= files


async def test_a_cancelled_request_is_cancelled_and_not_a_failure() -> None:
    async with endpoint(hang()) as (client, _):
        asked = asyncio.create_task(client.complete(HELLO))
        await asyncio.sleep(0.05)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked


def test_one_client_serves_one_event_loop_after_the_other() -> None:
    client: ChatClient | None = None

    async def main() -> str:
        nonlocal client
        async with FakeChat(lambda messages: "yes", port=port) as server:
            if client is None:
                client = ChatClient(ChatConfig(base_url=f"{server.url}/v1", model="m"))
            reply = await client.complete(HELLO)
            await client.close()
            return reply.text

    port = free_port()
    assert asyncio.run(main()) == asyncio.run(main()) == "yes"


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

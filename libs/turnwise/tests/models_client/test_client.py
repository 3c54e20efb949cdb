"""The chat client against an endpoint on this machine that misbehaves."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import re
import traceback
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web
from turnwise.config import ConfigError
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
    body,
    cut,
    disconnect,
    edit,
    hang,
    hang_in_body,
    status,
)

KEY = "sk-4f9c2d7e81a6b3"
HELLO = [{"role": "user", "content": "Hello?"}]


@asynccontextmanager
async def endpoint(
    *bad: Misbehaviour | None, words: str = "I want to cancel.", **options: Any
) -> AsyncIterator[tuple[ChatClient, FakeChat]]:
    """A client and an endpoint whose n-th answer is the n-th misbehaviour, the right one later."""
    async with FakeChat(lambda messages: words) as server:
        server.misbehave = lambda call: bad[call.number] if call.number < len(bad) else None
        settings = {"backoff_s": 0.01, "deadline_s": 20.0, **options}
        config = ChatConfig(base_url=f"{server.url}/v1", model="m", key_env="TEST_KEY", **settings)
        client = ChatClient(config, environ={"TEST_KEY": KEY})
        before = asyncio.all_tasks()
        try:
            yield client, server
        finally:
            assert client.limiter.running == client.limiter.waiting == 0
            assert client.spend.pledged_usd == 0
            await client.close()
            assert not [t for t in asyncio.all_tasks() - before if "turnwise" in repr(t)]


def always(bad: Misbehaviour) -> Sequence[Misbehaviour]:
    return [bad] * 50


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


def no_choices(answer: dict[str, Any]) -> None:
    del answer["choices"]


def content(value: Any) -> Misbehaviour:
    return edit(lambda answer: answer["choices"][0]["message"].update(content=value))


def finish(word: str) -> Misbehaviour:
    return edit(lambda answer: answer["choices"][0].update(finish_reason=word))


TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}


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


async def test_the_key_is_sent_as_a_bearer_and_connections_are_kept() -> None:
    seen: list[tuple[str, object]] = []

    async def look(request: web.Request, honest: Honest) -> web.StreamResponse:
        seen.append((request.headers["Authorization"], request.transport))
        return web.json_response(await honest())

    async with endpoint(look, look, look) as (client, _):
        for _ in range(3):
            await client.complete(HELLO)
    assert [header for header, _ in seen] == [f"Bearer {KEY}"] * 3
    assert len({id(transport) for _, transport in seen}) == 1


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


NOTHING_SAID = [
    content(None),
    content(""),
    content(" \n"),
    content(7),
    content([]),
    content({"text": "x"}),
    body(b""),
    body(b"{"),
    body(b"[" * 5000),
    body(b"null"),
    body(b'{"choices": {}}'),
    body(b'{"choices": [7]}'),
    body(b'{"choices": [{"message": "x"}]}'),
    body(b"\xff\xfe"),
    body(b'{"choices": null}'),
    body(b"[]"),
    body(b'{"choices": [{"text": "yes", "finish_reason": "stop"}]}'),
    body(b'{"choices": [{"delta": {"content": "yes"}}]}'),
    body(b'data: {"choices": [{"delta": {"content": "yes"}}]}', "text/event-stream"),
    body(b'{"choices": [{"message": {"content": ""}}]}'),
    body(b'{"choices": [{"message": {"content": null, "reasoning_content": "so"}}]}'),
    body(b" " * (MAX_ANSWER_BYTES + 1)),
    edit(lambda answer: {"error": "busy"}),
    edit(lambda answer: {"object": "error", "message": "busy"}),
    edit(lambda answer: answer.update(error={"message": "busy"})),
    edit(lambda answer: answer["choices"][0].update(error={"message": "busy"})),
    finish("error"),
    finish("abort"),
    finish("ERROR"),
    finish("network_error"),
    finish("content_filter"),
    finish("SAFETY"),
    edit(no_choices),
    edit(lambda answer: answer["choices"].clear()),
    edit(lambda answer: answer["choices"][0].pop("message")),
]


@pytest.mark.parametrize("bad", NOTHING_SAID)
async def test_an_answer_that_says_nothing_is_asked_for_again_a_bounded_number_of_times(
    bad: Misbehaviour,
) -> None:
    async with endpoint(bad, bad) as (client, server):
        assert (await client.complete(HELLO)).text == "I want to cancel."
    assert len(server.calls) == 3
    async with endpoint(*always(bad)) as (client, server):
        with pytest.raises(BoundaryError, match="3 answers that can't be used"):
            await client.complete(HELLO)
    assert len(server.calls) == client.empty_replies == 3
    assert client.retries == 0


NO_COMPLETION = NOTHING_SAID[3:4] + NOTHING_SAID[5:]


@pytest.mark.parametrize("bad", NO_COMPLETION)
async def test_what_is_no_completion_is_never_the_answer_of_a_policy(bad: Misbehaviour) -> None:
    async with endpoint(bad, bad) as (client, server):
        assert (await client.complete(HELLO, as_said=True)).text == "I want to cancel."
    async with endpoint(*always(bad)) as (client, server):
        with pytest.raises(BoundaryError, match="3 answers that can't be used"):
            await client.complete(HELLO, as_said=True)
    async with endpoint(*always(bad)) as (client, server):
        with pytest.raises(BoundaryError, match="can't be used"):
            await client.check()


@pytest.mark.parametrize("words", [None, "", " \n", []])
async def test_a_policy_may_say_nothing(words: Any) -> None:
    async with endpoint(content(words)) as (client, server):
        reply = await client.complete(HELLO, as_said=True)
    assert (reply.text.strip(), reply.finish, len(server.calls)) == ("", "stop", 1)


def refusing(answer: dict[str, Any]) -> None:
    answer["choices"][0]["message"].update(content=None, refusal="I can't help.")


async def test_a_refusal_is_what_a_policy_says_and_no_words_of_a_helper() -> None:
    async with endpoint(edit(refusing)) as (client, server):
        reply = await client.complete(HELLO, as_said=True)
    assert (reply.text, len(server.calls)) == ("I can't help.", 1)
    async with endpoint(*always(edit(refusing))) as (client, server):
        with pytest.raises(BoundaryError, match='a refusal: "I can\'t help."'):
            await client.complete(HELLO)
    assert len(server.calls) == 3


async def test_parts_of_text_are_one_answer() -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "image"}, 3, {"text": "there"}]
    async with endpoint(content(parts)) as (client, _):
        assert (await client.complete(HELLO)).text == "Hi there"


async def test_the_caller_says_what_is_usable() -> None:
    async with endpoint(content("no"), words="yes") as (client, server):
        reply = await client.complete(HELLO, usable=lambda text: text == "yes")
    assert reply.text == "yes"
    assert len(server.calls) == 2


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": 5},
        {"prompt_tokens": "5"},
        [],
        -1,
        {"prompt_tokens": int("9" * 400), "completion_tokens": 1},
        {"prompt_tokens": 1, "completion_tokens": 1e300},
        {"prompt_tokens": 5, "completion_tokens": 0},
        {"prompt_tokens": 0, "completion_tokens": 5},
        {"prompt_tokens": 5, "completion_tokens": 1.5},
        {"prompt_tokens": True, "completion_tokens": True},
    ],
)
async def test_an_answer_without_a_count_is_paid_by_estimate(usage: Any) -> None:
    def change(answer: dict[str, Any]) -> None:
        answer["usage"] = usage

    async with endpoint(edit(change), write_price=1e6) as (client, _):
        reply = await client.complete(HELLO)
    assert client.spend.estimated == 1
    assert reply.written_tokens == len("I want to cancel.") // 4 + 1
    assert client.spend.usd == pytest.approx(reply.written_tokens)


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


def packed(content: bytes, encoding: str) -> Misbehaviour:
    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        return web.Response(
            body=content, headers={"Content-Encoding": encoding}, content_type="application/json"
        )

    return send


ANSWER = b'{"choices": [{"message": {"content": "packed"}, "finish_reason": "stop"}]}'


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (gzip.compress(ANSWER), "gzip"),
        (gzip.compress(ANSWER[:20]) + gzip.compress(ANSWER[20:]), "gzip"),
        (zlib.compress(ANSWER), "deflate"),
        (ANSWER, "identity"),
    ],
)
async def test_a_packed_answer_is_read(content: bytes, encoding: str) -> None:
    async with endpoint(packed(content, encoding)) as (client, server):
        assert (await client.complete(HELLO)).text == "packed"
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("content", "encoding", "said"),
    [
        (gzip.compress(b" " * (64 * 2**20)), "gzip", f"more than {MAX_ANSWER_BYTES} bytes"),
        (gzip.compress(ANSWER)[:30], "gzip", "cut off"),
        (b"no gzip", "gzip", "can't be unpacked"),
        (ANSWER, "br", "packed as 'br'"),
    ],
)
async def test_an_answer_that_can_not_be_unpacked_is_never_held_whole(
    content: bytes, encoding: str, said: str
) -> None:
    async with endpoint(*always(packed(content, encoding))) as (client, server):
        tracemalloc.start()
        try:
            with pytest.raises(BoundaryError, match=said):
                await client.complete(HELLO)
            assert tracemalloc.get_traced_memory()[1] < 8 * MAX_ANSWER_BYTES
        finally:
            tracemalloc.stop()
    assert len(server.calls) == 3


@pytest.mark.parametrize("code", [200, 401, 503])
async def test_no_escape_sequence_of_an_endpoint_is_shown(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp"
    bad = status(code, evil) if code != 200 else edit(lambda answer: {"error": evil})
    async with endpoint(*always(bad), deadline_s=0.3) as (client, _):
        with pytest.raises(BoundaryError) as caught:
            await client.complete(HELLO)
    shown = f"{caught.value}{caplog.text}"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert "owned" in shown


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


def echo_key(code: int) -> Misbehaviour:
    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        key = request.headers["Authorization"].removeprefix("Bearer ")
        # Once at the beginning, and once where a cut at a fixed length would split it.
        text = f"{key} {'x' * 260} wrong key {key}"
        if code != 200:
            return web.Response(status=code, text=text)
        answer = await honest()
        answer["choices"][0]["message"]["content"] = text
        return web.json_response(answer)

    return send


@pytest.mark.parametrize("bad", [echo_key(401), echo_key(503), echo_key(200), disconnect()])
async def test_the_key_is_in_no_error_reply_log_or_config(
    bad: Misbehaviour, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    async with endpoint(*always(bad), deadline_s=0.3) as (client, _):
        try:
            seen = (await client.complete(HELLO)).text
        except BoundaryError as error:
            seen = "".join(traceback.format_exception(error))
        held = f"{client.config!r} {client.config.model_dump_json()} {vars(client)!r}"
        with_parts = [repr(vars(part)) for part in (client.limiter,)] + [repr(client.spend)]
    out = capfd.readouterr()
    everything = " ".join([seen, held, *with_parts, caplog.text, out.out, out.err])
    # The test's own mapping stands for the environment, which is where the key belongs.
    everything = everything.replace(repr({"TEST_KEY": KEY}), "")
    assert KEY not in everything
    assert KEY[:8] not in everything
    assert "TEST_KEY" in held


@pytest.mark.parametrize("value", [None, "", "  \n"])
def test_a_key_that_is_not_set_is_said_at_once(value: str | None) -> None:
    environ = {} if value is None else {"NO_KEY": value}
    config = ChatConfig(base_url="http://h/v1", model="m", key_env="NO_KEY")
    with pytest.raises(ConfigError, match="NO_KEY is not set"):
        ChatClient(config, environ=environ)


@pytest.mark.parametrize("value", ["abc\ndefghijk", "schlüssel-123", "abc\x00defghijk"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(value: str) -> None:
    config = ChatConfig(base_url="http://h/v1", model="m", key_env="BAD_KEY")
    with pytest.raises(ConfigError, match="BAD_KEY") as caught:
        ChatClient(config, environ={"BAD_KEY": value})
    assert value not in str(caught.value)


async def test_a_newline_around_the_key_is_not_sent() -> None:
    async with FakeChat(lambda messages: "x") as server:
        config = ChatConfig(base_url=f"{server.url}/v1/", model="m", key_env="K")
        client = ChatClient(config, environ={"K": f"{KEY}\n"})
        assert (await client.complete(HELLO)).text == "x"
        await client.close()


async def test_a_placeholder_for_a_key_does_not_blank_words() -> None:
    async with FakeChat(lambda messages: "The tank is EMPTY.") as server:
        config = ChatConfig(base_url=f"{server.url}/v1", model="m", key_env="K")
        client = ChatClient(config, environ={"K": "EMPTY"})
        assert (await client.complete(HELLO)).text == "The tank is EMPTY."
        await client.close()


Refused = Callable[[], ChatConfig]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"base_url": "localhost:30000"}, "base-url: must be a URL"),
        ({"base_url": "ftp://h/v1"}, "base-url: must be a URL"),
        ({"base_url": "http://[::1"}, "base-url"),
        ({"base_url": "http://me:secret@h/v1"}, "no user, query or fragment"),
        ({"base_url": "http://h/v1?key=abc"}, "no user, query or fragment"),
        ({"key_env": "sk-4f9c-2d7e"}, "key-env: must be the name of a variable"),
        ({"model": ""}, "model"),
        ({"deadline_s": 0}, "deadline-s"),
        ({"deadline_s": float("inf")}, "deadline-s: .*finite"),
        ({"patience_s": float("nan")}, "patience-s: .*finite"),
        ({"read_price": float("inf")}, "read-price: .*finite"),
        ({"write_price": 1e300}, "write-price"),
        ({"requests_per_minute": float("inf")}, "requests-per-minute: .*finite"),
        ({"tokens_per_minute": 1e300}, "tokens-per-minute"),
        ({"concurrency": 10**400}, "concurrency"),
        ({"max_tokens": 10**400}, "max-tokens"),
        ({"spend_cap_usd": 1.0}, "needs read-price and write-price"),
        ({"temprature": 1.0}, "temprature"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        ChatConfig(**{"base_url": "http://h/v1", "model": "m", **options})
    assert "secret" not in str(caught.value) and "sk-4f9c" not in str(caught.value)

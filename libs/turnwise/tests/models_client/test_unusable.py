"""Answers of an endpoint that say nothing, too much, or nothing that can be read."""

from __future__ import annotations

import gzip
import re
import tracemalloc
import zlib
from typing import Any

import pytest
from aiohttp import web
from turnwise.episode import BoundaryError
from turnwise.models.connections import MAX_ANSWER_BYTES
from turnwise.testing.servers import Honest, Misbehaviour, body, edit, status

from .misbehaving import HELLO, always, content, endpoint


def no_choices(answer: dict[str, Any]) -> None:
    del answer["choices"]


def finish(word: str) -> Misbehaviour:
    return edit(lambda answer: answer["choices"][0].update(finish_reason=word))


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

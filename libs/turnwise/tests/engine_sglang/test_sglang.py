"""The SGLang engine against a server on this machine."""

from __future__ import annotations

import asyncio
import gzip
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from turnwise.engine import SamplingParams, http
from turnwise.engine.http import HttpPool
from turnwise.engine.sglang import SGLangCompletion, SGLangEngine, read_answer
from turnwise.episode import Boundary, BoundaryError, DeadlineExceeded
from turnwise.testing.servers import (
    Call,
    FakeSGLang,
    Honest,
    Misbehaviour,
    Turn,
    body,
    cut,
    disconnect,
    edit,
    hang,
    hang_in_body,
    status,
)

PROMPT = np.array([5, 6, 7, 8], dtype=np.int32)
TURN = Turn([11, 12, 2], [-0.25, -1.5, -0.0078125])
PARAMS = SamplingParams(max_new_tokens=16, stop_token_ids=(2,), temperature=0.7, top_p=0.9)


async def say(call: Call) -> Turn:
    return TURN


@pytest.fixture
async def server() -> AsyncIterator[FakeSGLang]:
    async with FakeSGLang(say) as found:
        yield found


@pytest.fixture
async def pool() -> AsyncIterator[HttpPool]:
    found = HttpPool(backoff_s=0.001)
    yield found
    await found.close()


def engine(server: FakeSGLang, pool: HttpPool, **options: Any) -> SGLangEngine:
    return SGLangEngine(server.url, pool=pool, **options)


async def ask(found: SGLangEngine, session: str = "s") -> SGLangCompletion:
    return await found.generate(PROMPT, PARAMS, session_id=session)


async def test_ids_and_logprobs_come_back_as_the_server_gave_them(
    server: FakeSGLang, pool: HttpPool
) -> None:
    server.more_meta = lambda call, turn: {"spec_verify_ct": 2, "weight_version": "7"}
    got = await ask(engine(server, pool))
    assert got.ids.dtype == np.int32 and got.ids.tolist() == TURN.ids
    assert got.logprobs.dtype == np.float32 and got.logprobs.tolist() == TURN.logprobs
    assert (got.finish, got.weight_version, got.cached_tokens) == ("stop", 7, 0)
    assert got.meta["spec_verify_ct"] == 2 and got.meta["prompt_tokens"] == 4
    assert "output_token_logprobs" not in got.meta


async def test_the_request_holds_ids_alone_and_every_sampling_parameter(
    server: FakeSGLang, pool: HttpPool
) -> None:
    extra = {"stop": ["END"], "temperature": 9.0, "custom_params": {"return_top_p_token_ids": True}}
    await ask(engine(server, pool, sampling=extra, return_routed_experts=True), session="key-1")
    call = server.calls[0]
    assert call.session == "key-1"
    assert call.body == {
        "input_ids": [5, 6, 7, 8],
        "return_logprob": True,
        "return_routed_experts": True,
        "sampling_params": {
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": -1,
            "max_new_tokens": 16,
            "stop_token_ids": [2],
            "stop": ["END"],
            "custom_params": {"return_top_p_token_ids": True},
        },
    }


async def test_a_seed_is_sent_only_when_asked_and_fits_a_signed_integer(
    server: FakeSGLang, pool: HttpPool
) -> None:
    params = SamplingParams(seed=2**63 - 5)
    await engine(server, pool).generate(PROMPT, params, session_id="a")
    await engine(server, pool, send_seed=True).generate(PROMPT, params, session_id="b")
    first, second = (call.body["sampling_params"] for call in server.calls)
    assert "sampling_seed" not in first
    assert second["sampling_seed"] == (2**63 - 5) % 2**31


async def test_later_turns_of_a_session_report_cached_tokens(
    server: FakeSGLang, pool: HttpPool
) -> None:
    found = engine(server, pool)
    await ask(found)
    longer = np.array([5, 6, 7, 8, *TURN.ids, 30], dtype=np.int32)
    second = await found.generate(longer, PARAMS, session_id="s")
    assert second.cached_tokens == 7


async def test_a_turn_that_reaches_its_limit_ends_with_length(
    server: FakeSGLang, pool: HttpPool
) -> None:
    params = SamplingParams(max_new_tokens=2)
    got = await engine(server, pool).generate(PROMPT, params, session_id="s")
    assert (got.ids.tolist(), got.finish) == ([11, 12], "length")


@pytest.mark.parametrize(("context", "calls", "size"), [(4, 0, 0), (5, 1, 1), (3, 0, 0)])
async def test_a_full_context_gives_an_empty_or_a_short_turn(
    server: FakeSGLang, pool: HttpPool, context: int, calls: int, size: int
) -> None:
    got = await ask(engine(server, pool, max_context_tokens=context))
    assert got.finish == "length" and len(got.ids) == size
    assert len(server.calls) == calls


TRANSPORT: dict[str, Callable[[], Misbehaviour]] = {
    "refused by the router": lambda: status(503),
    "bad gateway": lambda: status(502),
    "internal error": lambda: status(500, "boom"),
    "too many requests": lambda: status(429, Retry_After="0.01"),
    "too many requests, date": lambda: status(429, Retry_After="Fri, 31 Dec 1999 23:59:59 GMT"),
    "no answer": disconnect,
    "reset": lambda: disconnect(reset=True),
    "cut in the body": cut,
}


@pytest.mark.parametrize("name", TRANSPORT)
async def test_a_request_without_an_answer_is_sent_again(
    server: FakeSGLang, pool: HttpPool, name: str
) -> None:
    bad = TRANSPORT[name]()
    server.misbehave = lambda call: bad if call.number < 2 else None
    got = await ask(engine(server, pool))
    assert got.ids.tolist() == TURN.ids
    assert (len(server.calls), pool.retries) == (3, 2)


@pytest.mark.parametrize("name", TRANSPORT)
async def test_repeats_are_bounded_and_then_the_engine_is_to_blame(
    server: FakeSGLang, pool: HttpPool, name: str
) -> None:
    bad = TRANSPORT[name]()
    server.misbehave = lambda call: bad
    with pytest.raises(BoundaryError, match="4 times") as caught:
        await ask(engine(server, pool))
    assert caught.value.boundary is Boundary.ENGINE
    assert len(server.calls) == 4


async def test_a_server_that_is_gone_is_the_engines_failure(pool: HttpPool) -> None:
    async with FakeSGLang(say) as gone:
        url = gone.url
    with pytest.raises(BoundaryError, match="ClientConnectorError") as caught:
        await SGLangEngine(url, pool=pool).generate(PROMPT, PARAMS, session_id="s")
    assert caught.value.boundary is Boundary.ENGINE


def _meta(name: str, value: Any) -> Misbehaviour:
    return edit(lambda answer: answer["meta_info"].__setitem__(name, value))


def _entry(value: Any) -> Misbehaviour:
    return edit(lambda answer: answer["meta_info"]["output_token_logprobs"].__setitem__(1, value))


RESULTS: dict[str, tuple[Misbehaviour, str]] = {
    "bad request": (status(400, "too long"), "HTTP 400 too long"),
    "not found": (status(404), "HTTP 404"),
    "redirect": (status(307, Location="http://127.0.0.1:1/"), "HTTP 307"),
    "no JSON": (body(b"<html>"), "no JSON"),
    "half of the JSON": (body(b'{"meta_info": {'), "no JSON"),
    "no bytes": (body(b""), "no JSON"),
    "no UTF-8": (body(b'{"text": "\xff"}'), "no JSON"),
    "NaN": (body(b'{"meta_info": NaN}'), "no JSON"),
    "deep nesting": (body(b"[" * 100_000), "no JSON"),
    "a list": (body(b"[]"), "no meta_info"),
    "null": (body(b"null"), "no meta_info"),
    "no meta_info": (edit(lambda answer: {"text": ""}), "no meta_info"),
    "no finish reason": (_meta("finish_reason", None), "finish_reason"),
    "odd finish reason": (_meta("finish_reason", {"type": "tired"}), "finish_reason"),
    "finish reason as text": (_meta("finish_reason", "stop"), "finish_reason"),
    "failed abort": (
        _meta("finish_reason", {"type": "abort", "status_code": 500}),
        "the request failed",
    ),
    "another prompt": (_meta("prompt_tokens", 5), "prompt_tokens is 5, expected 4"),
    "another count": (_meta("completion_tokens", 2), "completion_tokens is 2, expected 3"),
    "no prompt count": (_meta("prompt_tokens", None), "prompt_tokens is None"),
    "no count": (_meta("completion_tokens", None), "completion_tokens is None"),
    "a count as a float": (_meta("completion_tokens", 3.0), "completion_tokens is 3.0"),
    "a count of 400 digits": (_meta("prompt_tokens", 10**400), "prompt_tokens is 1000"),
    "400 digits from the cache": (_meta("cached_tokens", 10**400), "cached_tokens is a number"),
    "text from the cache": (_meta("cached_tokens", "4"), "cached_tokens is no count"),
    "less than nothing from the cache": (_meta("cached_tokens", -1), "cached_tokens is no count"),
    "400 digits of another count": (_meta("spec_verify_ct", 10**400), "spec_verify_ct is a number"),
    "a version of 400 digits": (_meta("weight_version", "9" * 400), "weight_version is a number"),
    "cut before its length": (
        _meta("finish_reason", {"type": "length"}),
        "with length after 3 of 16 tokens: does the server have a smaller context",
    ),
    "an infinite log-prob": (_entry([-1e39, 12, None]), "has no log-prob"),
    "a log-prob of 400 digits": (_entry([-(10**400), 12, None]), "has no log-prob"),
    "no log-probs": (_meta("output_token_logprobs", None), "is no list"),
    "empty stop": (_meta("output_token_logprobs", []), "is empty"),
    "null log-prob": (_entry([None, 12, None]), "has no log-prob"),
    "positive log-prob": (_entry([0.5, 12, None]), "has no log-prob"),
    "log-prob as text": (_entry(["-1", 12, None]), "has no log-prob"),
    "negative id": (_entry([-1.0, -3, None]), "has no token id"),
    "id as float": (_entry([-1.0, 12.0, None]), "has no token id"),
    "id as bool": (_entry([-1.0, True, None]), "has no token id"),
    "huge id": (_entry([-1.0, 2**31, None]), "has no token id"),
    "short entry": (_entry([-1.0]), r"is no \[log-prob, id\]"),
    "too many tokens": (_meta("output_token_logprobs", [[-1.0, 3, None]] * 17), "17 tokens where"),
}


@pytest.mark.parametrize("name", RESULTS)
async def test_an_answer_that_cannot_be_right_is_refused_and_never_asked_for_again(
    server: FakeSGLang, pool: HttpPool, name: str
) -> None:
    bad, message = RESULTS[name]
    server.misbehave = lambda call: bad
    with pytest.raises(BoundaryError, match=message) as caught:
        await ask(engine(server, pool))
    assert caught.value.boundary is Boundary.ENGINE
    assert len(server.calls) == 1


@pytest.mark.parametrize("bad", [hang(), hang_in_body()], ids=["headers", "body"])
async def test_a_hanging_server_costs_the_deadline_and_no_more(
    server: FakeSGLang, pool: HttpPool, bad: Misbehaviour
) -> None:
    server.misbehave = lambda call: bad
    with pytest.raises(DeadlineExceeded) as caught:
        await ask(engine(server, pool, deadline_s=0.05))
    assert caught.value.boundary is Boundary.ENGINE


async def test_the_deadline_spans_the_repeats(server: FakeSGLang) -> None:
    pool = HttpPool(backoff_s=0.05, attempts=1000)
    server.misbehave = lambda call: status(503)
    with pytest.raises(DeadlineExceeded):
        await ask(engine(server, pool, deadline_s=0.2))
    await pool.close()


async def test_an_aborted_turn_keeps_what_was_sampled(server: FakeSGLang, pool: HttpPool) -> None:
    server.delay_s = 30.0
    found = engine(server, pool)
    turn = asyncio.create_task(ask(found))
    while not server.calls:
        await asyncio.sleep(0.001)
    await found.abort()
    got = await turn
    assert (got.ids.tolist(), got.finish) == ([11], "abort")


def test_a_request_that_was_aborted_while_it_waited_has_no_counts_and_is_no_failure() -> None:
    meta = {"finish_reason": {"type": "abort"}, "output_token_logprobs": []}
    got = read_answer({"meta_info": meta}, len(PROMPT), 16)
    assert (len(got.ids), got.finish) == (0, "abort")
    with pytest.raises(BoundaryError, match="prompt_tokens is 3, expected 4"):
        read_answer({"meta_info": {**meta, "prompt_tokens": 3}}, len(PROMPT), 16)


async def test_closing_ends_requests_under_way_with_abort(server: FakeSGLang) -> None:
    server.delay_s = 30.0
    found = SGLangEngine(server.url)
    turn = asyncio.create_task(ask(found))
    while not server.calls:
        await asyncio.sleep(0.001)
    await found.close()
    got = await turn
    assert (len(got.ids), got.finish) == (0, "abort")
    with pytest.raises(BoundaryError, match="closed"):
        await ask(found)


async def test_cancelling_a_turn_cancels_its_request(server: FakeSGLang, pool: HttpPool) -> None:
    server.delay_s = 30.0
    turn = asyncio.create_task(ask(engine(server, pool)))
    while not server.running:
        await asyncio.sleep(0.001)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    async with asyncio.timeout(5):
        while server.running:
            await asyncio.sleep(0.001)


async def test_256_turns_at_once_share_the_pool(server: FakeSGLang, pool: HttpPool) -> None:
    server.delay_s = 0.05
    found = engine(server, pool)
    turns = await asyncio.gather(*(ask(found, session=str(number)) for number in range(256)))
    assert all(turn.ids.tolist() == TURN.ids for turn in turns)
    assert {call.session for call in server.calls} == {str(number) for number in range(256)}
    assert not found._requests, "answered requests are still held"


async def test_a_stale_connection_is_replaced(server: FakeSGLang, pool: HttpPool) -> None:
    found = engine(server, pool)
    await ask(found)
    port = server.port
    await server.stop()
    async with FakeSGLang(say, port=port):
        assert (await ask(found)).ids.tolist() == TURN.ids


def answered(*entries: list[Any], finish: str = "stop", **meta: Any) -> dict[str, Any]:
    """An answer to a prompt of 4 tokens."""
    return {
        "meta_info": {
            "finish_reason": {"type": finish},
            "prompt_tokens": 4,
            "completion_tokens": len(entries),
            "output_token_logprobs": list(entries),
            **meta,
        }
    }


@pytest.mark.parametrize("version", ["default", "", "12"])
def test_a_version_that_is_no_number_counts_as_0_and_stays_in_meta(version: str) -> None:
    got = read_answer(answered([-0.5, 3, None], weight_version=version), 4, 8)
    assert got.weight_version == (12 if version == "12" else 0)
    assert got.meta["weight_version"] == version


def test_rounding_above_zero_counts_as_zero() -> None:
    got = read_answer(answered([1e-7, 3, None], [0, 4, None]), 4, 8)
    assert got.logprobs.tolist() == [0.0, 0.0]
    assert not math.isnan(got.logprobs.sum())


def test_no_more_can_come_from_the_cache_than_the_prompt_has() -> None:
    assert read_answer(answered([-1.0, 3], cached_tokens=9), 4, 8).cached_tokens == 4


@pytest.mark.parametrize(("count", "fits"), [(12, True), (10, True), (9, False)])
async def test_at_the_end_of_the_context_the_servers_own_reserve_is_no_failure(
    server: FakeSGLang, pool: HttpPool, count: int, fits: bool
) -> None:
    entries = [[-1.0, 3, None]] * count
    server.misbehave = lambda call: edit(lambda answer: answered(*entries, finish="length"))
    found = engine(server, pool, max_context_tokens=16)
    if fits:
        assert len((await ask(found)).ids) == count
    else:
        with pytest.raises(BoundaryError, match="9 of 12"):
            await ask(found)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_a_body_without_an_end_is_not_read_to_its_end(
    encoding: str, server: FakeSGLang, pool: HttpPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 2**16)

    async def send(request: web.Request, honest: Honest) -> web.StreamResponse:
        content = b" " * 2**20
        content = gzip.compress(content) if encoding == "gzip" else content
        return web.Response(body=content, headers={"Content-Encoding": encoding})

    server.misbehave = lambda call: send
    with pytest.raises(BoundaryError, match="more than 65536 bytes"):
        await ask(engine(server, pool))
    assert len(server.calls) == 1
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 2)
    with pytest.raises(http.HttpError, match="more than 2 bytes"):
        await pool.get(f"{server.url}/v1/loads")


async def test_no_escape_sequence_of_a_server_is_shown(server: FakeSGLang, pool: HttpPool) -> None:
    server.misbehave = lambda call: status(400, "\x1b[2Jgone")
    with pytest.raises(BoundaryError) as caught:
        await ask(engine(server, pool))
    assert "\x1b" not in str(caught.value) and "\\x1b[2Jgone" in str(caught.value)


def test_a_pool_that_never_asks_is_refused() -> None:
    with pytest.raises(ValueError, match="attempts"):
        HttpPool(attempts=0)

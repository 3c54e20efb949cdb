from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, DeadlineExceeded
from turnwise.retrieval import Document, SearchClient, WordIndex, read_documents
from turnwise.retry import Backoff
from turnwise.testing.servers import (
    FakeRetrieval,
    Honest,
    Misbehaviour,
    body,
    disconnect,
    edit,
    hang,
    status,
)

DOCUMENTS = (
    Document("Otter", "An otter swims in rivers.", "a"),
    Document("", "Rivers carry water to the sea.", "b"),
    Document("Trains", "A locomotive pulls the night train.", "c"),
)
ROWS = [{"id": one.id, "content": one.text, "title": one.title} for one in DOCUMENTS]
QUICK = Backoff(first_s=0.001)


async def _ask(bad: list[Misbehaviour], *, deadline_s: float = 30.0) -> tuple[Any, FakeRetrieval]:
    """What a search gives, or how it fails, from a server whose first answers are `bad`."""
    async with FakeRetrieval(ROWS) as server:
        server.misbehave = lambda call: bad[call.number] if call.number < len(bad) else None
        client = SearchClient(server.url, deadline_s=deadline_s, backoff=QUICK)
        try:
            return await client.search("otter", k=2, eid="x"), server
        except BoundaryError as error:
            return error, server
        finally:
            await client.close()


async def test_a_search_asks_as_the_server_takes_it() -> None:
    found, server = await _ask([])
    assert found == list(DOCUMENTS[:2])
    [call] = server.calls
    assert call.body == {"queries": ["otter"], "topk": 2, "return_scores": True, "eid": "x"}


@pytest.mark.parametrize(
    "bad", [status(429, "full"), status(503, "busy"), status(500), disconnect()]
)
async def test_what_passes_is_asked_again(bad: Misbehaviour) -> None:
    found, server = await _ask([bad, bad])
    assert found == list(DOCUMENTS[:2]) and len(server.calls) == 3


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (status(400, "query 0: is blank"), "HTTP 400 query 0: is blank"),
        (status(404), "HTTP 404"),
        (body(b"<html>"), "no JSON"),
        (body(b"{}"), "expected the hits of one query"),
        (body(b"[]"), "expected the hits of one query"),
        (body(b"[[], []]"), "expected the hits of one query"),
        (body(b'[["x"]]'), "a hit without a document"),
        (body(b'[[{"document": {"id": "a"}}]]'), "a hit without a document"),
    ],
)
async def test_what_will_never_be_answered_fails_at_once(bad: Misbehaviour, words: str) -> None:
    error, server = await _ask([bad])
    assert isinstance(error, BoundaryError) and error.boundary is Boundary.TOOL_SERVER
    assert words in str(error) and len(server.calls) == 1


async def test_a_failure_is_never_an_empty_list() -> None:
    empty, _ = await _ask([edit(lambda answer: [[]])])
    assert empty == []
    failed, _ = await _ask([status(502)] * 99, deadline_s=0.2)
    assert isinstance(failed, DeadlineExceeded) and "HTTP 502" in str(failed)


async def test_a_server_that_hangs_is_not_waited_for() -> None:
    error, _ = await _ask([hang()], deadline_s=0.2)
    assert isinstance(error, DeadlineExceeded) and error.boundary is Boundary.TOOL_SERVER


async def test_nobody_there_fails_the_check() -> None:
    client = SearchClient("http://127.0.0.1:9", deadline_s=0.2, backoff=QUICK)
    with pytest.raises(DeadlineExceeded, match="http://127.0.0.1:9: no answer"):
        await client.check()
    await client.close()


async def test_a_blank_query_asks_nobody() -> None:
    async with FakeRetrieval(ROWS) as server:
        client = SearchClient(server.url)
        assert await client.search(" \n", k=5) == [] and not server.calls
        await client.close()


async def test_no_more_are_asked_at_once_than_may_be() -> None:
    async with FakeRetrieval(ROWS) as server:
        under_way = most = 0

        async def slow(request: web.Request, honest: Honest) -> web.StreamResponse:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1
            return web.json_response(await honest())

        server.misbehave = lambda call: slow
        client = SearchClient(server.url, concurrency=2)
        await asyncio.gather(*(client.search("otter", k=1) for _ in range(8)))
        assert most == 2 and client.metrics()["retrieval/searches"] == 8
        await client.close()


async def test_words_find_documents_best_first() -> None:
    index = WordIndex(DOCUMENTS)
    found = await index.search("which otter swims in rivers", k=5)
    assert [one.id for one in found] == ["a", "b"]
    assert [one.id for one in await index.search("night rivers sea", k=1)] == ["b"]
    for query in ("quantum", "the of and", "?!", ""):
        assert await index.search(query, k=5) == []


def test_documents_of_one_s_own_are_read_under_either_name(tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    rows = [{"text": "one", "id": 7}, {"content": "two", "title": None}]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert read_documents(path) == [Document("", "one", "7"), Document("", "two", "")]


def test_documents_without_a_word_are_refused() -> None:
    with pytest.raises(ConfigError, match="none has a word"):
        WordIndex([Document("", "?!")])

"""The two contracts, their refusals, and what concurrent requests share."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from turnwise.testing.servers import hang, status

from apps.services.retrieval import server
from apps.services.retrieval.fakes import (
    DOCUMENTS,
    Client,
    FakeEmbeddings,
    build,
    corpus_with_vectors,
    served,
)
from apps.services.retrieval.options import ServeOptions
from apps.services.retrieval.search import search


async def ready(folder: Path, **more: Any) -> ServeOptions:
    corpus, vectors = corpus_with_vectors(folder)
    await build(corpus, vectors)
    return ServeOptions(corpus=corpus, **more)


async def post(client: Client, path: str, body: Any) -> tuple[int, Any]:
    sent: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
    async with client.post(path, **sent) as response:
        return response.status, await response.json()


async def metrics(client: Client) -> dict[str, float]:
    async with client.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.removeprefix("turnwise_retrieval_"): float(value) for name, value in pairs}


async def test_retrieve_answers_as_upstream_does(tmp_path: Path) -> None:
    async with served(await ready(tmp_path)) as client:
        asked = {"queries": ["otter"], "topk": 1, "return_scores": True, "new_cache_dir": "/x"}
        code, [[hit]] = await post(client, "/retrieve", asked)
        assert code == 200 and hit["document"] == DOCUMENTS[3] and hit["score"] > 0
        asked = {"queries": ["railway", "otter", "unheard"], "return_scores": False}
        _, answers = await post(client, "/retrieve", asked)
        assert answers == [
            [{"document": DOCUMENTS[1]}],
            [{"document": DOCUMENTS[3]}, {"document": DOCUMENTS[0]}],
            [],
        ]


async def test_search_answers_one_query(tmp_path: Path) -> None:
    async with served(await ready(tmp_path)) as client:
        code, answer = await post(client, "/search", {"query": "otter", "k": 1})
        [hit] = answer["hits"]
        assert code == 200 and hit["document"]["id"] == "d" and hit["score"] > 0


@pytest.mark.parametrize("eid", ["../../etc/passwd", "a/b", "q", "\u0000", "💡"])
async def test_an_eid_is_a_key_and_nothing_else(tmp_path: Path, eid: str) -> None:
    options = await ready(tmp_path)
    asked = {"queries": ["otter"], "eid": eid}
    async with served(options, {eid: [0]}) as client:
        _, [hits] = await post(client, "/retrieve", asked)
        assert [hit["document"]["id"] for hit in hits] == ["a"]
        _, answer = await post(client, "/search", {"query": "otter", "eid": eid})
        assert [hit["document"]["id"] for hit in answer["hits"]] == ["a"]
    async with served(options) as client:
        _, [hits] = await post(client, "/retrieve", asked)
        assert [hit["document"]["id"] for hit in hits] == ["d", "a"]
        code, answer = await post(client, "/search", {"query": "otter", "eid": eid})
        assert code == 400 and "has no list" in answer["error"]


@pytest.mark.parametrize(
    ("path", "body", "code", "said"),
    [
        ("/search", b"{", 400, "not as /search takes it"),
        ("/search", b"\xff", 400, "not as /search takes it"),
        ("/search", b"[" * 100_000, 400, "not as /search takes it"),
        ("/search", b'{"query": "\\ud800"}', 400, "not as /search takes it"),
        ("/search", {"query": 3}, 400, "$.query"),
        ("/search", {"query": "x", "topk": 3}, 400, "topk"),
        ("/search", {"query": "x", "k": 0}, 400, "$.k"),
        ("/search", {"query": "x", "k": 1001}, 400, "$.k"),
        ("/search", {"query": " "}, 400, "is blank"),
        ("/search", {"query": "x", "mode": "words"}, 400, "$.mode"),
        ("/search", {"query": "x", "mode": "dense"}, 400, "start it with --embeddings"),
        ("/search", {"query": "x" * 2**20}, 413, ""),
        ("/retrieve", {"queries": []}, 400, "$.queries"),
        ("/retrieve", {"queries": "x"}, 400, "$.queries"),
        ("/retrieve", {"queries": ["x", ""]}, 400, "query 1: is blank"),
        ("/retrieve", {"queries": ["x"] * 4}, 400, "queries: expected 3 at most, found 4"),
        ("/retrieve", {"queries": ["x"], "eid": 3}, 400, "$.eid"),
        ("/elsewhere", {}, 404, ""),
        ("/health", {}, 405, ""),
    ],
)
async def test_a_wrong_request_is_refused_as_json(
    tmp_path: Path, path: str, body: Any, code: int, said: str
) -> None:
    async with served(await ready(tmp_path, max_queue=3)) as client:
        found, answer = await post(client, path, body)
        assert found == code and said in answer["error"] and "\n" not in answer["error"]


class Held:
    """The search, which waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = threading.Event()
        self.let_go = threading.Event()
        self.batches: list[int] = []
        monkeypatch.setattr(server, "search", self)

    def __call__(self, index: Any, allowed: Any, queries: Any, vectors: Any) -> Any:
        self.batches.append(len(queries))
        self.started.set()
        assert self.let_go.wait(60)
        return search(index, allowed, queries, vectors)


async def test_concurrent_queries_are_one_search_and_a_full_queue_says_429(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    async with served(await ready(tmp_path, max_queue=5)) as client:
        ask = {"query": "otter"}
        tasks = [asyncio.create_task(post(client, "/search", ask))]
        await asyncio.to_thread(held.started.wait, 60)
        tasks += [asyncio.create_task(post(client, "/search", ask)) for _ in range(5)]
        while (await metrics(client))["words_waiting"] < 5:
            await asyncio.sleep(0.005)
        async with client.post("/search", json=ask) as response:
            assert response.status == 429 and response.headers["Retry-After"] == "1"
            assert (await response.json())["error"] == "5 queries wait, 5 may"
        held.let_go.set()
        answers = await asyncio.gather(*tasks)
        assert [code for code, _ in answers] == [200] * 6
        assert all(answer == answers[0] for answer in answers)
        assert held.batches == [1, 5]
        seen = await metrics(client)
        assert seen['requests_total{path="/search",status="200"}'] == 6
        assert seen['requests_total{path="/search",status="429"}'] == 1
        assert seen['queries_total{mode="bm25"}'] == 6
        assert seen["words_searches_total"] == 2


async def test_a_request_without_an_answer_in_time_says_504(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    async with served(await ready(tmp_path, deadline_s=0.01)) as client:
        code, answer = await post(client, "/search", {"query": "otter"})
        held.let_go.set()
    assert (code, answer) == (504, {"error": "no answer within 0.01 s"})


async def test_vectors_answer_where_the_request_asks_for_them(tmp_path: Path) -> None:
    corpus, vectors = corpus_with_vectors(tmp_path)
    await build(corpus, vectors, query_prefix="Find: ")
    async with FakeEmbeddings(0) as endpoint:
        options = ServeOptions(corpus=corpus, mode="hybrid", embeddings=endpoint.options())
        async with served(options) as client:
            _, answer = await post(client, "/search", {"query": "an animal", "mode": "dense"})
            assert [hit["document"]["id"] for hit in answer["hits"]][:2] == ["d", "a"]
            assert endpoint.calls[0].body["input"] == ["Find: an animal"]
            _, answer = await post(client, "/search", {"query": "otter", "mode": "bm25"})
            assert len(answer["hits"]) == 2 and len(endpoint.calls) == 1
            _, [hits] = await post(client, "/retrieve", {"queries": ["otter"]})
            assert len(hits) == 5


async def test_an_endpoint_that_fails_is_never_an_empty_answer(tmp_path: Path) -> None:
    async with FakeEmbeddings(0) as endpoint:
        options = await ready(tmp_path, mode="hybrid", embeddings=endpoint.options(attempts=1))
        async with served(options) as client:
            endpoint.misbehave = lambda call: status(503, "loading")
            code, answer = await post(client, "/search", {"query": "otter"})
            assert code == 502 and "status 503: loading" in answer["error"]
            code, _ = await post(client, "/search", {"query": "otter", "mode": "bm25"})
            assert code == 200


async def test_a_text_that_is_refused_fails_no_other_query(tmp_path: Path) -> None:
    async with FakeEmbeddings(0) as endpoint:
        options = await ready(tmp_path, mode="dense", embeddings=endpoint.options())
        endpoint.misbehave = lambda call: (
            status(400, "too long") if any("LONG" in text for text in call.body["input"]) else None
        )
        async with served(options) as client:
            held = [post(client, "/search", {"query": one}) for one in ("otter", "LONG", "train")]
            first, refused, last = await asyncio.gather(*held)
            assert (first[0], refused[0], last[0]) == (200, 502, 200)
            assert "too long" in refused[1]["error"]


async def test_a_slow_endpoint_holds_up_no_query_by_words(tmp_path: Path) -> None:
    async with FakeEmbeddings(0) as endpoint:
        options = await ready(tmp_path, mode="dense", embeddings=endpoint.options())
        endpoint.misbehave = lambda call: hang()
        async with served(options) as client:
            slow = asyncio.create_task(post(client, "/search", {"query": "otter"}))
            while not endpoint.calls:
                await asyncio.sleep(0.005)
            code, _ = await post(client, "/search", {"query": "otter", "mode": "bm25"})
            assert code == 200 and not slow.done()
            slow.cancel()


async def test_health_says_what_is_served(tmp_path: Path) -> None:
    async with served(await ready(tmp_path)) as client, client.get("/health") as response:
        found = await response.json()
    assert found.pop("corpus")
    assert found == {"status": "ok", "mode": "bm25", "documents": 5, "model": None}

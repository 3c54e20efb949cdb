"""The service over HTTP.

| route            | body                                      | answer             |
|------------------|-------------------------------------------|--------------------|
| `POST /retrieve` | `queries`, `topk`, `return_scores`, `eid` | hits of each query |
| `POST /search`   | `query`, `k`, `mode`, `eid`               | `hits`             |
| `GET /health`    |                                           | what is served     |
| `GET /metrics`   |                                           | Prometheus' text   |

A hit is `{"document": {...}, "score": number}`. An error is `{"error": text}` with status 400 (the
request), 413 (its size), 429 (no room in the queue), 502 (the endpoint of the embeddings), 503
(stopping) or 504 (no answer within the deadline).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from aiohttp import web
from turnwise.printable import one_line

from apps.services.retrieval.batching import Batcher, QueueFull
from apps.services.retrieval.embedders import AnyEmbedder
from apps.services.retrieval.embeddings import EmbeddingError, EmbeddingRefused
from apps.services.retrieval.metrics import Metrics
from apps.services.retrieval.options import Mode, ServeOptions
from apps.services.retrieval.search import Query, search
from apps.services.retrieval.store import Index

MAX_HITS = 1000
MAX_BODY_BYTES = 2**20
RETRY_AFTER_S = 1
_GIVEN_UP = 499
_EXCERPT = 500
logger = logging.getLogger(__name__)

StructT = TypeVar("StructT", bound=msgspec.Struct)
_Hits = Annotated[int, msgspec.Meta(ge=1, le=MAX_HITS)]


class Hit(msgspec.Struct, omit_defaults=True):
    """One document; without a score where none was asked for."""

    document: msgspec.Raw
    score: float | None = None


class RetrieveRequest(msgspec.Struct):
    """Upstream's; further keys are left alone."""

    queries: Annotated[list[str], msgspec.Meta(min_length=1)]
    topk: _Hits = 5
    return_scores: bool = False
    eid: str | None = None


class SearchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """One query; `mode` is the server's where it is left out."""

    query: str
    k: _Hits = 5
    mode: Mode | None = None
    eid: str | None = None


class Service:
    """Answers queries from an index. `run` must be running.

    Attributes:
        stopping: Set when the server ends: it is then not healthy.
    """

    def __init__(
        self,
        options: ServeOptions,
        index: Index,
        allowed: dict[str, np.ndarray],
        embedder: AnyEmbedder | None,
    ) -> None:
        self._options = options
        self._index = index
        self._allowed = allowed
        self._embedder = embedder
        self._metrics = Metrics()
        self.stopping = False
        # Queries that wait for an endpoint never hold up those that need none.
        self._lanes: dict[str, Batcher[Query, list[Hit]]] = {
            name: Batcher(answer, max_queue=options.max_queue, max_batch=options.max_batch)
            for name, answer in (("words", self._by_words), ("vectors", self._by_vectors))
        }

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.router.add_post("/retrieve", self._retrieve)
        app.router.add_post("/search", self._search)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._show_metrics)
        return app

    async def run(self) -> None:
        """Searches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for lane in self._lanes.values():
                tasks.create_task(lane.run())

    async def _by_words(self, queries: list[Query]) -> Sequence[list[Hit]]:
        return await asyncio.to_thread(self._hits, queries, None)

    async def _by_vectors(self, queries: list[Query]) -> Sequence[list[Hit] | Exception]:
        embedded = await self._embed(queries)
        pairs = [
            (query, vector)
            for query, vector in zip(queries, embedded, strict=True)
            if not isinstance(vector, Exception)
        ]
        hits: list[list[Hit]] = []
        if pairs:
            vectors = np.stack([vector for _, vector in pairs])
            hits = await asyncio.to_thread(self._hits, [query for query, _ in pairs], vectors)
        left = iter(hits)
        return [one if isinstance(one, Exception) else next(left) for one in embedded]

    async def _embed(self, queries: list[Query]) -> Sequence[np.ndarray | Exception]:
        """A vector each, or why there is none: a text that is refused fails no other query."""
        dense = self._index.manifest.dense
        assert dense is not None and self._embedder is not None
        texts = [f"{dense.query_prefix}{query.text}" for query in queries]
        try:
            vectors = await self._embedder.embed(texts)
        except EmbeddingRefused as error:
            if len(queries) == 1:
                return [error]
            return [one for query in queries for one in await self._embed([query])]
        if vectors.shape[1] != dense.dimension:
            raise EmbeddingError(
                f"a vector of {vectors.shape[1]} numbers, the index has {dense.dimension}"
            )
        return list(vectors)

    def _hits(self, queries: list[Query], vectors: np.ndarray | None) -> list[list[Hit]]:
        documents = self._index.documents
        return [
            [
                Hit(documents.as_json(position), score)
                for position, score in zip(
                    ranking.positions.tolist(), ranking.scores.tolist(), strict=True
                )
            ]
            for ranking in search(self._index, self._allowed, queries, vectors)
        ]

    async def _answer(self, queries: list[Query]) -> list[list[Hit]]:
        mode = queries[0].mode
        if mode != "bm25" and self._embedder is None:
            raise _refused(
                f"mode: {mode} needs vectors, which this server has not: start it with --embeddings"
            )
        if len(queries) > self._options.max_queue:
            raise _refused(
                f"queries: expected {self._options.max_queue} at most, found {len(queries)}"
            )
        for number, query in enumerate(queries):
            if not query.text.strip():
                raise _refused(f"query {number}: is blank; a query needs words")
        lane = self._lanes["words" if mode == "bm25" else "vectors"]
        try:
            async with asyncio.timeout(self._options.deadline_s):
                answers = await lane.submit(queries)
        except TimeoutError:
            text = f"no answer within {self._options.deadline_s:g} s"
            raise web.HTTPGatewayTimeout(text=text) from None
        except QueueFull as error:
            after = {"Retry-After": str(RETRY_AFTER_S)}
            raise web.HTTPTooManyRequests(text=str(error), headers=after) from None
        except EmbeddingError as error:
            raise web.HTTPBadGateway(text=f"embeddings: {error}") from None
        self._metrics.queries(mode, len(queries))
        return answers

    async def _retrieve(self, request: web.Request) -> web.Response:
        asked = await _body(request, RetrieveRequest)
        # As upstream has it: an eid without a list sees every document.
        eid = asked.eid if asked.eid in self._allowed else None
        queries = [Query(text, asked.topk, self._options.mode, eid) for text in asked.queries]
        answers = await self._answer(queries)
        if not asked.return_scores:
            answers = [[Hit(hit.document) for hit in hits] for hits in answers]
        return _json(answers)

    async def _search(self, request: web.Request) -> web.Response:
        asked = await _body(request, SearchRequest)
        if asked.eid is not None and asked.eid not in self._allowed:
            raise _refused(f"eid: {one_line(asked.eid, 80)!r} has no list among those of --allow")
        query = Query(asked.query, asked.k, asked.mode or self._options.mode, asked.eid)
        [hits] = await self._answer([query])
        return _json({"hits": hits})

    async def _health(self, request: web.Request) -> web.Response:
        manifest = self._index.manifest
        served = {
            "status": "stopping" if self.stopping else "ok",
            "mode": self._options.mode,
            "documents": manifest.documents,
            "corpus": manifest.corpus,
            "model": manifest.dense.model if manifest.dense and self._embedder else None,
        }
        return _json(served, status=503 if self.stopping else 200)

    async def _show_metrics(self, request: web.Request) -> web.Response:
        gauges = {f"{name}_waiting": lane.waiting for name, lane in self._lanes.items()}
        counters = {f"{name}_searches_total": lane.searches for name, lane in self._lanes.items()}
        if self._embedder is not None:
            counters["embedding_requests_total"] = self._embedder.requests
            counters["embedding_retries_total"] = self._embedder.retries
        return web.Response(text=self._metrics.text(gauges, counters), content_type="text/plain")

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Counts every request, and answers every failure as JSON."""
        started, status = time.perf_counter(), _GIVEN_UP
        try:
            response = await _as_json(request, handler)
            status = response.status
            return response
        finally:
            route = request.match_info.route.resource
            path = route.canonical if route is not None else "other"
            self._metrics.request(path, status, time.perf_counter() - started)


async def _as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        kept = {
            name: error.headers[name] for name in ("Retry-After", "Allow") if name in error.headers
        }
        text = one_line(error.text or error.reason, _EXCERPT)
        return _json({"error": text}, status=error.status, headers=kept)
    except Exception:
        logger.exception("%s failed", request.path)
        return _json({"error": "the server failed; its log says why"}, status=500)


async def _body(request: web.Request, kind: type[StructT]) -> StructT:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(f"the body is not as {request.path} takes it: {error}") from None


def _refused(text: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=text)


def _json(
    value: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        headers=headers,
        content_type="application/json",
    )

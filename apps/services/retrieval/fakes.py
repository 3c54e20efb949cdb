"""A corpus of a few subjects, an endpoint that embeds by subject, and the service for a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from turnwise.testing.servers import Call, _Server

from apps.services.retrieval.embeddings import Embedder
from apps.services.retrieval.options import EmbeddingOptions, IndexOptions, ServeOptions
from apps.services.retrieval.server import Service
from apps.services.retrieval.store import build_index, open_index

DOCUMENTS = (
    {"id": "a", "content": "The otter swims in the river.", "year": 1990},
    {"id": "b", "content": "A locomotive pulls the night train.", "title": "Railway"},
    {"id": "c", "content": "A river carries water to the sea."},
    {"id": "d", "content": "The river otter eats fish, and the otter sleeps."},
    {"id": "e", "content": "Bread needs flour, water, salt and yeast."},
)
SUBJECTS = (
    ("otter", "animal", "fish"),
    ("train", "railway"),
    ("river", "water", "sea"),
    ("bread",),
)
Client = TestClient[web.Request, web.Application]


def vector(text: str) -> list[float]:
    """How often each subject is meant; the last number keeps every vector from being zero."""
    words = text.lower()
    return [float(sum(words.count(word) for word in subject)) for subject in SUBJECTS] + [0.01]


class FakeEmbeddings(_Server):
    """An OpenAI-compatible endpoint of embeddings."""

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/embeddings", self._embed)

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, "", self._vectors)

    async def _vectors(self, call: Call) -> dict[str, Any]:
        data = [
            {"object": "embedding", "index": at, "embedding": vector(text)}
            for at, text in enumerate(call.body["input"])
        ]
        return {"object": "list", "model": call.body["model"], "data": data[::-1]}

    def options(self, **more: Any) -> EmbeddingOptions:
        return EmbeddingOptions(model="subjects", base_url=f"{self.url}/v1", **more)


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def corpus_with_vectors(folder: Path) -> tuple[Path, Path]:
    """The corpus, and its vectors as another program would have made them."""
    corpus = write_rows(folder / "corpus.jsonl", DOCUMENTS)
    vectors = folder / "vectors.npy"
    texts = (f"{one.get('title', '')} {one['content']}" for one in DOCUMENTS)
    np.save(vectors, np.array([vector(text) for text in texts], dtype=np.float32))
    return corpus, vectors


async def build(corpus: Path, vectors: Path | None = None, **more: Any) -> None:
    embeddings = EmbeddingOptions(model="subjects") if vectors is not None else None
    await build_index(IndexOptions(corpus=corpus, vectors=vectors, embeddings=embeddings, **more))


@asynccontextmanager
async def served(
    options: ServeOptions, allowed: dict[str, list[int]] | None = None
) -> AsyncIterator[Client]:
    """A client of the service of an index that is there."""
    index = open_index(options.folder, options.corpus)
    embedder = Embedder(options.embeddings) if options.embeddings is not None else None
    lists = {eid: np.array(at, dtype=np.int64) for eid, at in (allowed or {}).items()}
    service = Service(options, index, lists, embedder)
    searching = asyncio.create_task(service.run())
    try:
        async with TestClient(TestServer(service.app())) as client:
            yield client
    finally:
        searching.cancel()
        await asyncio.gather(searching, return_exceptions=True)
        if embedder is not None:
            await embedder.close()

"""The service under concurrent clients, and what it finds, against bm25s and FAISS alone.

    python -m benchmarks.retrieval.measure --documents 20000
    python -m benchmarks.retrieval.measure --documents 4000 --embeddings minilm

Server and endpoint run in processes of their own. "Alone" is the library in this process, one query
after the other on one index in memory, without HTTP and without embedding a query.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import aiohttp
import bm25s  # type: ignore[import-untyped]
import faiss
import msgspec
import numpy as np
from pydantic import Field
from turnwise.arguments import parse_args
from turnwise.command import run_command
from turnwise.config import CommandConfig

from apps.services.retrieval.embedders import open_embedder
from apps.services.retrieval.embeddings import unit_vectors
from apps.services.retrieval.options import EmbeddingOptions, IndexOptions
from apps.services.retrieval.store import build_index, tokens
from benchmarks.retrieval import meanings
from benchmarks.retrieval.workload import LENGTH, Workload, generate, text_vectors

K = 10
ROOT = Path(__file__).parents[2]


class MeasureConfig(CommandConfig):
    """Measures the retrieval service on a generated corpus."""

    documents: int = Field(default=20_000, ge=K)
    """Documents of the corpus."""
    questions: int = Field(default=2_000, ge=1)
    """Questions, each asked once in each mode."""
    clients: int = Field(default=64, ge=1)
    """Clients that ask at the same time, each one question after the other."""
    words: int = Field(default=LENGTH, ge=3)
    """Words of a document (embeddings generated)."""
    embeddings: Literal["generated", "minilm"] = "generated"
    """Made-up words with made-up vectors; or plain English, embedded by the int8 MiniLM of
    third_party/python/minilm.lock in the service itself."""
    seed: int = 0
    """Of the corpus."""


class Measured(msgspec.Struct, frozen=True):
    """Of one way to search: queries per second, seconds of one query, recall@10."""

    name: str
    qps: float
    p50_s: float
    p99_s: float
    recall: float


def summary(
    name: str, work: Workload, found: Sequence[Sequence[int]], seconds: Sequence[float], wall: float
) -> Measured:
    """`found` are positions, best first."""
    hits = [right in places for right, places in zip(work.relevant, found, strict=True)]
    p50, p99 = np.percentile(seconds, [50, 99])
    return Measured(name, len(found) / wall, float(p50), float(p99), float(np.mean(hits)))


def alone(name: str, work: Workload, ask: Callable[[int], Sequence[int]]) -> Measured:
    """A library in this process; `ask` takes the number of a question."""
    found, seconds = [], []
    started = time.perf_counter()
    for number in range(len(work.questions)):
        begun = time.perf_counter()
        found.append(ask(number))
        seconds.append(time.perf_counter() - begun)
    return summary(name, work, found, seconds, time.perf_counter() - started)


def libraries(work: Workload, vectors: np.ndarray, asked: np.ndarray) -> Iterator[Measured]:
    """bm25s and FAISS flat; `vectors` of the documents and `asked` of the questions."""
    words = bm25s.BM25(method="lucene")
    words.index(tokens(work.documents), show_progress=False)

    def by_words(number: int) -> Sequence[int]:
        said = tokens([work.questions[number]])
        places, scores = words.retrieve(said, k=K, show_progress=False)
        return list(places[0][scores[0] > 0])

    yield alone("bm25s alone", work, by_words)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    yield alone("FAISS flat alone", work, lambda at: list(flat.search(asked[at : at + 1], K)[1][0]))


async def under_load(url: str, mode: str, work: Workload, clients: int) -> Measured:
    """All questions by `clients` at once."""
    found: list[list[int]] = [[] for _ in work.questions]
    seconds: list[float] = []
    numbers = iter(range(len(work.questions)))

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = {"query": work.questions[number], "k": K, "mode": mode}
            begun = time.perf_counter()
            async with session.post(f"{url}/search", json=body) as response:
                response.raise_for_status()
                answer = msgspec.json.decode(await response.read())
            seconds.append(time.perf_counter() - begun)
            found[number] = [int(hit["document"]["id"]) for hit in answer["hits"]]

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        started = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(clients)))
        wall = time.perf_counter() - started
    return summary(f"service, {mode}", work, found, seconds, wall)


@contextmanager
def process(module: str, *words: str) -> Iterator[str]:
    """A program of ours; gives the first line that it prints."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        cwd=ROOT,
    ) as started:
        assert started.stdout is not None
        try:
            yield started.stdout.readline().strip()
        finally:
            started.terminate()


@contextmanager
def embedding(config: MeasureConfig) -> Iterator[dict[str, str]]:
    """Who embeds, as options of the server."""
    if config.embeddings == "minilm":
        yield {"directory": "minilm"}
        return
    with process("benchmarks.retrieval.workload") as port:
        yield {"model": "generated", "base-url": f"http://127.0.0.1:{port}/v1"}


async def embed_questions(config: MeasureConfig, questions: Sequence[str]) -> np.ndarray:
    """float32[questions, dimension]."""
    if config.embeddings == "generated":
        return unit_vectors(text_vectors(questions))
    embedder = open_embedder(EmbeddingOptions(directory=Path("minilm")))
    try:
        return await embedder.embed(questions)
    finally:
        await embedder.close()


def make_index(config: MeasureConfig, work: Workload, corpus: Path) -> Path:
    """Writes the corpus and its index; where the documents' vectors are."""
    rows: list[Any] = [{"id": at, "content": text} for at, text in enumerate(work.documents)]
    corpus.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    if config.embeddings == "minilm":
        options = IndexOptions(corpus=corpus, embeddings=EmbeddingOptions(directory=Path("minilm")))
    else:
        given = corpus.with_suffix(".npy")
        np.save(given, text_vectors(work.documents))
        options = IndexOptions(
            corpus=corpus, vectors=given, embeddings=EmbeddingOptions(model="generated")
        )
    started = time.perf_counter()
    asyncio.run(build_index(options))
    print(f"index: {time.perf_counter() - started:.1f} s")
    return options.folder / "vectors.npy"


def measure(config: MeasureConfig) -> list[Measured]:
    """Each mode of the service, then the libraries alone."""
    if config.embeddings == "minilm":
        work = meanings.generate(config.documents, config.questions, config.seed)
    else:
        work = generate(config.documents, config.questions, config.seed, config.words)
    with TemporaryDirectory() as name:
        corpus = Path(name) / "corpus.jsonl"
        vectors = make_index(config, work, corpus)
        with embedding(config) as given:
            words = ["--corpus", str(corpus), "--port", "0", "--deadline-s", "600"]
            words += [word for key, one in given.items() for word in (f"--embeddings.{key}", one)]
            with process("apps.services.retrieval.serve", *words) as line:
                url = line.split(" ")[0]
                found = [
                    asyncio.run(under_load(url, mode, work, config.clients))
                    for mode in ("bm25", "dense", "hybrid")
                ]
        asked = asyncio.run(embed_questions(config, work.questions))
        return [*found, *libraries(work, np.load(vectors), asked)]


def main(argv: Sequence[str]) -> None:
    """The command."""
    config = parse_args(
        MeasureConfig, argv, prog="measure", description=MeasureConfig.__doc__ or ""
    )
    print(f"{'':18} {'queries/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'recall@10':>9}")
    for one in measure(config):
        times = f"{1000 * one.p50_s:8.2f} {1000 * one.p99_s:8.2f}"
        print(f"{one.name:18} {one.qps:9.0f} {times} {one.recall:9.3f}")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

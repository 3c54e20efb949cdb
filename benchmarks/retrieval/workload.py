"""A generated corpus with questions whose right document is known, and an endpoint for its vectors.

A document has words of its subject and words of everywhere; a question has three words of one
document, of which each is replaced by a synonym with probability `SYNONYM`: a word that stands in
no document, and whose vector lies near. A text's vector is the mean of its words' vectors with
noise, so that words alone miss what synonyms hide, and vectors alone miss what the mean blurs.

    python -m benchmarks.retrieval.workload

serves `/v1/embeddings` on a port that it prints, until its input closes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

import numpy as np
from aiohttp import web

DIMENSION = 384
VOCABULARY = 20_000
LENGTH = 60
SYNONYM = 0.4
NOISE = 0.5


@dataclass(frozen=True, slots=True)
class Workload:
    """Documents, and questions with the position of the document that each was made of."""

    documents: list[str]
    questions: list[str]
    relevant: list[int]


def generate(documents: int, questions: int, seed: int, words: int = LENGTH) -> Workload:
    """The same for the same numbers."""
    random = np.random.default_rng(seed)
    # Word frequencies fall as in natural text (Zipf).
    shares = 1 / np.arange(10, VOCABULARY + 10)
    drawn = random.choice(VOCABULARY, size=(documents, words), p=shares / shares.sum())
    texts = [" ".join(f"word{number}" for number in row) for row in drawn]
    relevant = random.integers(documents, size=questions)
    asked = []
    for position in relevant:
        chosen = random.choice(np.unique(drawn[position]), size=3, replace=False)
        hidden = random.random(3) < SYNONYM
        asked.append(
            " ".join(f"{'other' if h else 'word'}{w}" for w, h in zip(chosen, hidden, strict=True))
        )
    return Workload(texts, asked, relevant.tolist())


@cache
def word_vector(word: str) -> np.ndarray:
    """float32[DIMENSION]; of a synonym that of its word with noise."""
    if word.startswith("other"):
        return word_vector(f"word{word.removeprefix('other')}") + NOISE * _normal(word)
    return _normal(word)


def text_vectors(texts: Sequence[str]) -> np.ndarray:
    """float32[texts, DIMENSION]."""
    places: dict[str, int] = {}
    rows = [[places.setdefault(word, len(places)) for word in text.split()] for text in texts]
    words = np.stack([word_vector(word) for word in places])
    found = np.empty((len(texts), DIMENSION), np.float32)
    for at, row in enumerate(rows):
        words[row].mean(axis=0, out=found[at])
    return found


def _normal(word: str) -> np.ndarray:
    seed = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).standard_normal(DIMENSION, dtype=np.float32)


async def _embed(request: web.Request) -> web.Response:
    texts = (await request.json())["input"]
    vectors = text_vectors(texts).tolist()
    data = [{"index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return web.json_response({"data": data})


async def _serve() -> None:
    app = web.Application()
    app.router.add_post("/v1/embeddings", _embed)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve())

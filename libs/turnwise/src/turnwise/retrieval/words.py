"""BM25 in this process, for as many documents as memory holds.

Scores are Lucene's as `bm25s` computes them (Lù 2024, arXiv:2407.03618), English stop words left
out, no stemming. Equal scores: the earlier document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from turnwise.config import ConfigError
from turnwise.episode import Boundary, crossing
from turnwise.retrieval.documents import Document


class WordIndex:
    """Ranks documents by BM25. A `Searcher`; every document may be seen, whatever the eid."""

    def __init__(self, documents: Sequence[Document]) -> None:
        """
        Raises:
            ConfigError: no document has a word.
        """
        # bm25s takes up jax where it is installed, which is slow and may not fit the node's NumPy:
        # who has no documents does without.
        import bm25s  # type: ignore[import-untyped]

        self._documents = list(documents)
        words = _words([f"{document.title}\n{document.text}" for document in documents])
        if not any(words):
            raise ConfigError(f"documents: {len(self._documents)}, and none has a word")
        self._index: Any = bm25s.BM25(method="lucene")
        self._index.index(words, show_progress=False)
        self._searches = 0

    def __len__(self) -> int:
        return len(self._documents)

    async def search(self, query: str, *, k: int, eid: str | None = None) -> list[Document]:
        """See `Searcher`."""
        self._searches += 1
        async with crossing(Boundary.TOOL_SERVER):
            return await asyncio.to_thread(self._find, query, k)

    async def check(self) -> None:
        """See `Searcher`: an index that is built answers."""
        return None

    def metrics(self) -> dict[str, float]:
        """See `Searcher`."""
        return {"retrieval/searches": float(self._searches)}

    async def close(self) -> None:
        """See `Searcher`."""
        return None

    def _find(self, query: str, k: int) -> list[Document]:
        [words] = _words([query])
        known = self._index.get_tokens_ids(words)
        if not len(known):
            return []
        scores = self._index.get_scores_from_ids(known)
        order = np.argsort(-scores, kind="stable")[:k]
        return [self._documents[int(place)] for place in order if scores[place] > 0]


def _words(texts: list[str]) -> list[list[str]]:
    import bm25s

    found: list[list[str]] = bm25s.tokenize(
        texts, stopwords="en", return_ids=False, show_progress=False
    )
    return found

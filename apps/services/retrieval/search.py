"""Many queries against an index as one search.

1. BM25 sums the scores of a query's words; a document without any of them is no hit.
2. Dense is the exact inner product of unit vectors (the cosine), by FAISS; all queries that see the
   same documents are one product.
3. Hybrid adds 1 / (60 + rank) over both (Cormack et al. 2009, reciprocal rank fusion), each with
   its first max(100, k).
4. Equal scores are ordered by the place in the corpus.
5. A query that may see some documents only is searched among those: nothing is filtered afterwards,
   so that it gets k of them where there are k.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apps.services.retrieval.options import Mode
from apps.services.retrieval.store import Index, tokens

RRF_K = 60
FUSED_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Query:
    """One question.

    Attributes:
        k: Hits at most.
        eid: The allow-list that holds; None for all documents.
    """

    text: str
    k: int
    mode: Mode
    eid: str | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Positions int64[n] in the corpus with scores float[n], best first."""

    positions: np.ndarray
    scores: np.ndarray


def search(
    index: Index,
    allowed: dict[str, np.ndarray],
    queries: Sequence[Query],
    vectors: np.ndarray | None,
) -> list[Ranking]:
    """The hits of each query.

    Args:
        allowed: Positions by eid; an `eid` of a query must be in it.
        vectors: float32[queries, dimension], of length 1; rows of bm25 queries are not read. None
            if all are.
    """
    by_words = [
        _by_words(index, query, words, allowed) if query.mode != "dense" else None
        for query, words in zip(queries, tokens([one.text for one in queries]), strict=True)
    ]
    by_vectors: list[Ranking | None] = [None] * len(queries)
    if vectors is not None:
        by_vectors = _by_vectors(index, queries, vectors, allowed)
    return [
        _cut(fuse([one for one in pair if one is not None]), query.k)
        for query, *pair in zip(queries, by_words, by_vectors, strict=True)
    ]


def fuse(rankings: Sequence[Ranking]) -> Ranking:
    """Two rankings by the sum of 1 / (60 + rank); one as it is."""
    if len(rankings) == 1:
        return rankings[0]
    sums: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, position in enumerate(ranking.positions.tolist(), start=1):
            sums[position] += 1 / (RRF_K + rank)
    positions = np.fromiter(sums, dtype=np.int64, count=len(sums))
    scores = np.fromiter(sums.values(), dtype=np.float64, count=len(sums))
    return best(positions, scores, len(sums))


def best(positions: np.ndarray, scores: np.ndarray, k: int) -> Ranking:
    """The k highest scores, equal ones by position."""
    if len(scores) > k:
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = np.flatnonzero(scores >= threshold)
        positions, scores = positions[kept], scores[kept]
    order = np.lexsort((positions, -scores))[:k]
    return Ranking(positions[order], scores[order])


def _cut(ranking: Ranking, k: int) -> Ranking:
    return Ranking(ranking.positions[:k], ranking.scores[:k])


def _depth(query: Query) -> int:
    return max(FUSED_DEPTH, query.k) if query.mode == "hybrid" else query.k


def _by_words(
    index: Index, query: Query, words: list[str], allowed: dict[str, np.ndarray]
) -> Ranking:
    scores = index.bm25.get_scores_from_ids(index.bm25.get_tokens_ids(words))
    if query.eid is None:
        positions = np.flatnonzero(scores)
    else:
        positions = allowed[query.eid]
        positions = positions[scores[positions] > 0]
    return best(positions, scores[positions], _depth(query))


def _by_vectors(
    index: Index,
    queries: Sequence[Query],
    vectors: np.ndarray,
    allowed: dict[str, np.ndarray],
) -> list[Ranking | None]:
    # Words alone are searched without it.
    import faiss

    assert index.vectors is not None
    groups: dict[str | None, list[int]] = defaultdict(list)
    for at, query in enumerate(queries):
        if query.mode != "bm25":
            groups[query.eid].append(at)
    found: list[Ranking | None] = [None] * len(queries)
    for eid, members in groups.items():
        among = index.vectors if eid is None else index.vectors[allowed[eid]]
        depth = min(len(among), max(_depth(queries[at]) for at in members))
        if not depth:
            for at in members:
                found[at] = Ranking(np.empty(0, np.int64), np.empty(0, np.float32))
            continue
        scores, places = faiss.knn(
            vectors[members], among, depth, metric=faiss.METRIC_INNER_PRODUCT
        )
        positions = places if eid is None else allowed[eid][places]
        for row, at in enumerate(members):
            found[at] = best(positions[row], scores[row], _depth(queries[at]))
    return found

"""Rankings are those of bm25s and FAISS alone, exact among the allowed documents, and fused."""

from pathlib import Path

import bm25s  # type: ignore[import-untyped]
import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.services.retrieval.embeddings import unit_vectors
from apps.services.retrieval.fakes import DOCUMENTS, build, corpus_with_vectors, vector, write_rows
from apps.services.retrieval.options import Mode
from apps.services.retrieval.search import Query, Ranking, best, fuse, search
from apps.services.retrieval.store import Index, open_index

SCORES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=30)


@given(SCORES, st.integers(1, 40))
def test_the_best_are_those_of_a_stable_sort(scores: list[float], k: int) -> None:
    positions = np.arange(len(scores)) * 3
    found = best(positions, np.array(scores), k)
    expected = sorted(zip((-score for score in scores), positions, strict=True))[:k]
    assert [(-s, p) for p, s in zip(found.positions, found.scores, strict=True)] == expected


@given(st.permutations(range(8)), st.permutations(range(8)), st.integers(0, 8))
def test_fusion_sums_reciprocal_ranks(one: list[int], other: list[int], cut: int) -> None:
    def ranking(places: list[int]) -> Ranking:
        return Ranking(np.array(places, dtype=np.int64), np.zeros(len(places)))

    found = fuse([ranking(one), ranking(other[:cut])])
    for place, score in zip(found.positions, found.scores, strict=True):
        ranks = [given.index(place) + 1 for given in (one, other[:cut]) if place in given]
        assert score == pytest.approx(sum(1 / (60 + rank) for rank in ranks))
    order = list(zip(-found.scores, found.positions, strict=True))
    assert order == sorted(order) and len(order) == 8


@pytest.fixture
async def index(tmp_path: Path) -> Index:
    corpus, vectors = corpus_with_vectors(tmp_path)
    await build(corpus, vectors)
    return open_index(tmp_path / "corpus.jsonl.index", corpus)


def names(
    index: Index, text: str, mode: Mode = "bm25", k: int = 5, allowed: list[int] | None = None
) -> list[str]:
    lists = {} if allowed is None else {"q": np.array(allowed, dtype=np.int64)}
    query = Query(text, k, mode, None if allowed is None else "q")
    vectors = unit_vectors(np.array([vector(text)])) if mode != "bm25" else None
    [ranking] = search(index, lists, [query], vectors)
    return [str(DOCUMENTS[position]["id"]) for position in ranking.positions]


async def test_words_find_what_has_them_and_nothing_else(index: Index) -> None:
    assert names(index, "otter") == ["d", "a"]
    assert names(index, "railway") == ["b"]
    assert names(index, "the of unheard") == []


async def test_vectors_find_what_is_meant(index: Index) -> None:
    assert names(index, "an animal", "dense", k=2) == ["d", "a"]
    assert len(names(index, "an animal", "dense")) == 5


async def test_a_fusion_begins_with_what_both_find(index: Index) -> None:
    assert names(index, "otter fish", "hybrid", k=2) == ["d", "a"]


@pytest.mark.parametrize("mode", ["bm25", "dense", "hybrid"])
async def test_a_list_is_searched_alone_and_whole(index: Index, mode: Mode) -> None:
    assert names(index, "otter river", mode, k=1) == ["a"]
    assert names(index, "otter river", mode, k=1, allowed=[2, 4]) == ["c"]
    assert names(index, "otter river", mode, allowed=[]) == []


async def test_a_batch_is_answered_as_its_queries_alone(index: Index) -> None:
    lists = {"q": np.array([0, 2], dtype=np.int64), "none": np.array([], dtype=np.int64)}
    modes: list[Mode] = ["dense", "hybrid"]
    queries = [
        Query(text, k, mode, eid)
        for text in ("otter", "a train", "water and bread", "zzz")
        for k in (1, 4)
        for mode in modes
        for eid in (None, "q", "none")
    ]
    vectors = unit_vectors(np.array([vector(one.text) for one in queries]))
    together = search(index, lists, queries, vectors)
    for at, (query, found) in enumerate(zip(queries, together, strict=True)):
        [alone] = search(index, lists, [query], vectors[at : at + 1])
        assert found.positions.tolist() == alone.positions.tolist()
        np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-5)
        assert len(found.positions) <= query.k


async def test_scores_are_those_of_the_libraries_alone(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = [f"word{number}" for number in range(300)]
    texts = [" ".join(random.choice(words, 30)) for _ in range(400)]
    rows = [{"id": at, "content": text} for at, text in enumerate(texts)]
    corpus = write_rows(tmp_path / "corpus.jsonl", rows)
    given = random.normal(size=(400, 16)).astype(np.float32)
    np.save(tmp_path / "v.npy", given)
    await build(corpus, tmp_path / "v.npy")
    index = open_index(tmp_path / "corpus.jsonl.index", corpus)

    questions = [" ".join(random.choice(words, 4)) for _ in range(20)]
    asked = unit_vectors(random.normal(size=(20, 16)))
    bm25 = bm25s.BM25(method="lucene")
    bm25.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    tokens = bm25s.tokenize(questions, stopwords="en", show_progress=False)
    _, by_words = bm25.retrieve(tokens, k=10, show_progress=False)
    flat = faiss.IndexFlatIP(16)
    flat.add(unit_vectors(given))
    by_vectors, _ = flat.search(asked, 10)
    for mode, expected in (("bm25", by_words), ("dense", by_vectors)):
        queries = [Query(text, 10, mode) for text in questions]  # type: ignore[arg-type]
        found = search(index, {}, queries, asked if mode == "dense" else None)
        np.testing.assert_allclose([one.scores for one in found], expected, rtol=1e-5)

"""An index is whole, of the corpus it is served with, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from turnwise.command import RunError, run_command
from turnwise.config import ConfigError
from turnwise.testing.servers import status

from apps.services.retrieval.fakes import (
    DOCUMENTS,
    FakeEmbeddings,
    build,
    corpus_with_vectors,
    write_rows,
)
from apps.services.retrieval.index import index
from apps.services.retrieval.options import IndexOptions
from apps.services.retrieval.store import build_index, open_index


async def test_an_index_says_what_it_was_made_of(tmp_path: Path) -> None:
    corpus, vectors = corpus_with_vectors(tmp_path)
    await build(corpus, vectors, query_prefix="Query: ")
    opened = open_index(tmp_path / "corpus.jsonl.index", corpus)
    dense = opened.manifest.dense
    assert opened.manifest.documents == 5 and dense is not None
    assert (dense.model, dense.dimension, dense.query_prefix) == ("subjects", 5, "Query: ")
    assert isinstance(opened.vectors, np.memmap)
    assert isinstance(opened.bm25.scores["data"], np.memmap)
    np.testing.assert_allclose(np.linalg.norm(opened.vectors, axis=1), 1, rtol=1e-6)


async def test_an_endpoint_makes_the_same_index_as_its_vectors_in_a_file(tmp_path: Path) -> None:
    corpus, vectors = corpus_with_vectors(tmp_path)
    await build(corpus, vectors, index=tmp_path / "file")
    async with FakeEmbeddings(0) as endpoint:
        options = IndexOptions(
            corpus=corpus, index=tmp_path / "asked", embeddings=endpoint.options(batch=2)
        )
        assert await build_index(options) == open_index(tmp_path / "file", corpus).manifest
        assert [len(call.body["input"]) for call in endpoint.calls] == [2, 2, 1]
    one, other = (open_index(tmp_path / name, corpus).vectors for name in ("file", "asked"))
    np.testing.assert_array_equal(one, other)


async def test_an_endpoint_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    corpus, _ = corpus_with_vectors(tmp_path)
    before = sorted(tmp_path.iterdir())
    async with FakeEmbeddings(0) as endpoint:
        endpoint.misbehave = lambda call: status(400, "too long") if call.number else None
        with pytest.raises(RunError, match="status 400: too long; no index was written"):
            await build_index(IndexOptions(corpus=corpus, embeddings=endpoint.options(batch=2)))
    assert sorted(tmp_path.iterdir()) == before


async def test_another_corpus_than_the_index_was_built_of_is_refused(tmp_path: Path) -> None:
    corpus, _ = corpus_with_vectors(tmp_path)
    await build(corpus)
    write_rows(corpus, DOCUMENTS[:-1])
    with pytest.raises(ConfigError, match=r"was built of a corpus with SHA-256 .* remove "):
        open_index(tmp_path / "corpus.jsonl.index", corpus)


def edit_manifest(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DENSE = {"model": "subjects", "query_prefix": ""}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 0}, "has format 0, known is 1"),
        ({"more": 1}, "is no manifest of an index"),
        ({"documents": 6}, "documents: has 5, the manifest 6"),
        ({"dense": {**DENSE, "dimension": 4}}, "by the manifest float32[5, 4]"),
    ],
)
async def test_a_manifest_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    corpus, vectors = corpus_with_vectors(tmp_path)
    await build(corpus, vectors)
    folder = tmp_path / "corpus.jsonl.index"
    edit_manifest(folder, **changes)
    with pytest.raises(ConfigError) as error:
        open_index(folder, corpus)
    assert said in str(error.value) and "build it again" in str(error.value)


@pytest.mark.parametrize(
    "name",
    ["manifest.json", "ends.npy", "documents.jsonl", "vectors.npy", "bm25/vocab.index.json"]
    + [f"bm25/{one}.csc.index.npy" for one in ("data", "indices", "indptr")],
)
@pytest.mark.parametrize("broken", ["gone", "empty", "cut"])
async def test_a_broken_file_of_an_index_is_one_error(
    tmp_path: Path, name: str, broken: str
) -> None:
    corpus, vectors = corpus_with_vectors(tmp_path)
    await build(corpus, vectors)
    path = tmp_path / "corpus.jsonl.index" / name
    content = path.read_bytes()
    path.unlink()
    if broken != "gone":
        path.write_bytes(b"" if broken == "empty" else content[: len(content) // 2])
    with pytest.raises(ConfigError):
        open_index(tmp_path / "corpus.jsonl.index", corpus)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.ones((4, 3), np.float32), "has 4 rows, the corpus 5 documents"),
        (np.ones((5,), np.float32), "must be float[5, dimension], found float32[5]"),
        (np.ones((5, 0), np.float32), "found float32[5, 0]"),
        (np.ones((5, 3), np.int64), "found int64[5, 3]"),
        (np.diag([1.0, 1, 1, 0, 1]), "row 3: its vector is zero or not finite"),
        (np.diag([1.0, 1, np.nan, 1, 1]), "row 2: its vector is zero or not finite"),
        (np.array([{}], dtype=object), "is no .npy file of numbers"),
        (None, "is no .npy file of numbers"),
    ],
)
def test_vectors_that_are_not_usable_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], array: Any, said: str
) -> None:
    corpus, vectors = corpus_with_vectors(tmp_path)
    if array is None:
        vectors.write_text("not numpy")
    else:
        np.save(vectors, array, allow_pickle=True)
    words = ["--corpus", str(corpus), "--embeddings.model", "m", "--vectors", str(vectors)]
    assert run_command(index, words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "corpus.jsonl.index").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--corpus: is needed"),
        (["--vectors", "v.npy"], "--vectors: needs --embeddings.model"),
        (["--query-prefix", "q"], "--query-prefix: needs --embeddings.model"),
        (["--embeddings.model", "m"], "give one, found neither"),
        (["--embeddings.base-url", "http://h/v1"], "--embeddings: model: is needed, or directory"),
        (["--embeddings.model", "m", "--embeddings.base-url", "h"], "must be a URL"),
        (["--embedings.model", "m"], "did you mean"),
    ],
)
def test_wrong_options_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    corpus, _ = corpus_with_vectors(tmp_path)
    given = ["--corpus", str(corpus), *words] if words else []
    assert run_command(index, given) == 2
    assert said in capsys.readouterr().err


def test_the_command_builds_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus, _ = corpus_with_vectors(tmp_path)
    assert run_command(index, ["--corpus", str(corpus)]) == 0
    assert "corpus.jsonl.index: 5 documents, bm25, " in capsys.readouterr().out
    assert run_command(index, ["--corpus", str(corpus)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_a_corpus_without_words_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", [{"id": 1, "content": "the of a"}])
    assert run_command(index, ["--corpus", str(corpus)]) == 2
    assert "no document has a word" in capsys.readouterr().err

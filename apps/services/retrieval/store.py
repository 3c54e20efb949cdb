"""The index on disk: built whole or not at all, opened as memory maps, bound to its corpus.

| file             | holds                                                                     |
|------------------|---------------------------------------------------------------------------|
| `manifest.json`  | what the index was made of; written last                                  |
| `documents.jsonl`, `ends.npy` | the documents, and the byte where each ends                  |
| `bm25/`          | Lucene's BM25 as `bm25s` computes it (Lù 2024, arXiv:2407.03618)          |
| `vectors.npy`    | float32[documents, dimension], each of length 1; with a dense search only |
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s  # type: ignore[import-untyped]
import msgspec
import numpy as np
from turnwise.command import RunError
from turnwise.config import ConfigError
from turnwise.run.disk import making, reading, reason, writing

from apps.services.retrieval.documents import (
    Documents,
    corpus_hash,
    read_corpus,
    searched_text,
    write_documents,
)
from apps.services.retrieval.embedders import AnyEmbedder, open_embedder
from apps.services.retrieval.embeddings import EmbeddingError, unit_vectors
from apps.services.retrieval.options import IndexOptions

FORMAT = 1
_MANIFEST = "manifest.json"
_VECTORS = "vectors.npy"
_BM25 = "bm25"
_ROWS = 4096


class Dense(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the vectors: the model that made them, and what stands before a query."""

    model: str
    dimension: int
    query_prefix: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an index was made of; `corpus` is the file's SHA-256."""

    format: int
    corpus: str
    documents: int
    dense: Dense | None


@dataclass(frozen=True, slots=True)
class Index:
    """An open index.

    Attributes:
        vectors: float32[documents, dimension], read only; None without a dense search.
    """

    manifest: Manifest
    documents: Documents
    bm25: Any
    vectors: np.ndarray | None


def tokens(texts: list[str]) -> list[list[str]]:
    """The words of each text that BM25 counts: lower case, two letters and more, no English stop
    words."""
    found: list[list[str]] = bm25s.tokenize(
        texts, stopwords="en", return_ids=False, show_progress=False
    )
    return found


def words_index(texts: list[str]) -> Any:
    """A BM25 index.

    Raises:
        ValueError: no text has a word.
    """
    words = tokens(texts)
    if not any(words):
        raise ValueError("no document has a word that BM25 counts")
    index = bm25s.BM25(method="lucene")
    index.index(words, show_progress=False)
    return index


async def build_index(options: IndexOptions) -> Manifest:
    """Builds the index of `options.corpus` in `options.folder`.

    Raises:
        ConfigError: the folder is there already, or corpus or vectors are not usable.
        PreflightError: the disk can't be written to.
        RunError: the endpoint or the disk failed; nothing is left behind.
    """
    folder = options.folder
    if folder.exists():
        raise ConfigError(
            f"--index {folder}: is there already; serve it, remove it, or name another"
        )
    digest = corpus_hash(options.corpus)
    with _unfinished(folder) as part:
        count = write_documents(part, read_corpus(options.corpus))
        documents = Documents(part)
        try:
            words_index([searched_text(one) for one in documents]).save(
                part / _BM25, show_progress=False
            )
        except ValueError as error:
            raise ConfigError(f"{options.corpus}: {error}") from None
        dense = await _write_vectors(part / _VECTORS, documents, options)
        documents.close()
        if corpus_hash(options.corpus) != digest:
            raise RunError(f"{options.corpus}: was changed while it was read; build again")
        manifest = Manifest(FORMAT, digest, count, dense)
        (part / _MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        for path in sorted(part.rglob("*")):
            _sync(path)
    return manifest


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """A folder beside `folder`, which becomes it if the block ends well and goes if not."""
    part = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    with making("--index"):
        part.mkdir(parents=True)
    try:
        try:
            yield part
        except OSError as error:
            raise RunError(f"{folder}: can't be written: {reason(error)}") from error
        with writing(folder):
            os.rename(part, folder)
            _sync(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _write_vectors(path: Path, documents: Documents, options: IndexOptions) -> Dense | None:
    if options.embeddings is None:
        return None
    if options.vectors is not None:
        dimension = _copy_vectors(path, options.vectors, len(documents))
        return Dense(options.embeddings.model, dimension, options.query_prefix)
    embedder = open_embedder(options.embeddings)
    try:
        dimension = await _embed_documents(path, documents, embedder, options.embeddings.batch)
    except EmbeddingError as error:
        raise RunError(f"--embeddings: {error}; no index was written") from None
    finally:
        await embedder.close()
    return Dense(embedder.model, dimension, options.query_prefix)


async def _embed_documents(
    path: Path, documents: Documents, embedder: AnyEmbedder, size: int
) -> int:
    target: np.ndarray | None = None
    for start in range(0, len(documents), size):
        rows = range(start, min(start + size, len(documents)))
        found = await embedder.embed([searched_text(documents[at]) for at in rows])
        if target is None:
            target = _new_array(path, (len(documents), found.shape[1]))
        if found.shape[1] != target.shape[1]:
            raise EmbeddingError(
                f"document {start}: a vector of {found.shape[1]} numbers, those before have"
                f" {target.shape[1]}"
            )
        target[rows.start : rows.stop] = found
    assert target is not None
    return int(target.shape[1])


def _copy_vectors(path: Path, source: Path, count: int) -> int:
    flag = f"--vectors {source}"
    try:
        with reading(source):
            given = np.load(source, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{flag}: is no .npy file of numbers: {reason(error)}") from None
    shape = getattr(given, "shape", None)
    if shape is None or given.ndim != 2 or given.dtype.kind != "f" or not shape[1]:
        what = f"{given.dtype}{list(shape)}" if shape is not None else "an archive"
        raise ConfigError(f"{flag}: must be float[{count}, dimension], found {what}")
    if shape[0] != count:
        raise ConfigError(f"{flag}: has {shape[0]} rows, the corpus {count} documents")
    target = _new_array(path, shape)
    for start in range(0, count, _ROWS):
        try:
            target[start : start + _ROWS] = unit_vectors(given[start : start + _ROWS])
        except ValueError as error:
            row, _, said = str(error).partition(": ")
            raise ConfigError(f"{flag}: row {start + int(row)}: {said}") from None
    return int(shape[1])


def _new_array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)


def open_index(folder: Path, corpus: Path) -> Index:
    """
    Raises:
        ConfigError: the folder holds no index, or one of another corpus or format.
    """
    rebuild = f"remove {folder} and build it again with apps/services/retrieval:index"
    path = folder / _MANIFEST
    try:
        with reading(path):
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: is no manifest of an index: {error}; {rebuild}") from None
    if manifest.format != FORMAT:
        raise ConfigError(f"{path}: has format {manifest.format}, known is {FORMAT}; {rebuild}")
    digest = corpus_hash(corpus)
    if manifest.corpus != digest:
        raise ConfigError(
            f"{folder}: was built of a corpus with SHA-256 {manifest.corpus[:12]}...,"
            f" {corpus} has {digest[:12]}...; {rebuild}"
        )
    try:
        documents = Documents(folder)
        words = bm25s.BM25.load(folder / _BM25, mmap=True, show_progress=False)
        vectors = None
        if manifest.dense is not None:
            vectors = np.load(folder / _VECTORS, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder}: is broken: {reason(error)}; {rebuild}") from None
    _check_shapes(folder, manifest, documents, words, vectors, rebuild)
    return Index(manifest, documents, words, vectors)


def _check_shapes(
    folder: Path,
    manifest: Manifest,
    documents: Documents,
    words: Any,
    vectors: np.ndarray | None,
    rebuild: str,
) -> None:
    count = manifest.documents
    found = {"documents": len(documents), "bm25": words.scores["num_docs"]}
    for name, size in found.items():
        if size != count:
            raise ConfigError(f"{folder}: {name}: has {size}, the manifest {count}; {rebuild}")
    if vectors is None or manifest.dense is None:
        return
    shape = (count, manifest.dense.dimension)
    if vectors.shape != shape or vectors.dtype != np.float32:
        raise ConfigError(
            f"{folder}: {_VECTORS}: is {vectors.dtype}{list(vectors.shape)}, by the manifest"
            f" float32{list(shape)}; {rebuild}"
        )

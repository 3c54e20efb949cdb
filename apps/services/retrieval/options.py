"""What a person writes: where the documents are, how they are searched, what the server bears."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from turnwise.config import CommandConfig, Config, ConfigError
from turnwise.models.config import check_url

Mode = Literal["bm25", "dense", "hybrid"]


class EmbeddingOptions(Config):
    """The model of the dense search."""

    model: str = ""
    """The model, by its endpoint's name; the index is bound to it."""
    directory: Path | None = None
    """A model's folder in place of an endpoint, read in this process; `minilm` is the int8 MiniLM
    of installed packages."""
    base_url: str = ""
    """OpenAI-compatible endpoint, up to and without `/embeddings`, such as `http://HOST:30000/v1`."""
    key_env: str = ""
    """Environment variable that holds the key; without it no key is sent."""
    attempt_s: float = Field(default=30.0, gt=0, le=3600)
    """Seconds for one request."""
    attempts: int = Field(default=3, ge=1, le=100)
    """How often a request is sent before it counts as failed."""
    batch: int = Field(default=32, ge=1, le=1024)
    """Texts in one request at most."""

    @property
    def embeds(self) -> bool:
        """Whether there is somebody who embeds a text."""
        return bool(self.base_url) or self.directory is not None

    @model_validator(mode="after")
    def _is_sound(self) -> EmbeddingOptions:
        if self.directory is not None and (self.model or self.base_url):
            raise ValueError("directory: goes without model and base-url; the folder is the model")
        if self.directory is None and not self.model:
            raise ValueError("model: is needed, or directory")
        if self.base_url:
            check_url(self.base_url)
        if self.key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_env):
            raise ValueError("key-env: must be the name of a variable, not the key itself")
        return self


class CorpusOptions(CommandConfig):
    """What both commands are told."""

    corpus: Path
    """The documents: .jsonl or .parquet, one a row with `id`, `content` (or `text`) and, if it has
    one, `title`."""
    index: Path | None = None
    """Folder of the index; the corpus's path with `.index` after it if left out."""
    embeddings: EmbeddingOptions | None = None
    """The model of the dense search."""

    @property
    def folder(self) -> Path:
        """Where the index is."""
        return self.index or self.corpus.with_name(f"{self.corpus.name}.index")


class IndexOptions(CorpusOptions):
    """Builds the index of a corpus: BM25, and dense vectors where `--embeddings` names a model."""

    vectors: Path | None = None
    """The documents' vectors, made elsewhere: a .npy file, float[documents, dimension] in the
    corpus's order. Without it the endpoint is asked for them."""
    query_prefix: str = ""
    """Stands before each query that is embedded, as models with an instruction want it."""

    @model_validator(mode="after")
    def _is_sound(self) -> IndexOptions:
        if self.embeddings is None:
            if self.vectors is not None:
                raise ConfigError("--vectors: needs --embeddings.model, which made them")
            if self.query_prefix:
                raise ConfigError("--query-prefix: needs --embeddings.model, which reads it")
        elif self.embeddings.embeds == (self.vectors is not None):
            found = "both" if self.vectors is not None else "neither"
            raise ConfigError(
                "--embeddings: the documents' vectors come from --embeddings.base-url or"
                f" --embeddings.directory, or from --vectors; give one, found {found}"
            )
        return self


class ServeOptions(CorpusOptions):
    """Serves a corpus over HTTP. An index that is not there yet is built first, BM25 alone."""

    mode: Mode = "bm25"
    """How /retrieve searches, and /search where the request says nothing: words, vectors, or both
    fused by reciprocal rank."""
    allow: Path | None = None
    """Which documents an `eid` may see: .jsonl or .parquet, one a row with `eid` and `ids`."""
    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 for every one of the machine."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen at; 0 takes a free one."""
    max_queue: int = Field(default=1024, ge=1, le=1_000_000)
    """Queries that may wait; a request that finds no room is answered with 429."""
    max_batch: int = Field(default=64, ge=1, le=4096)
    """Queries answered by one search at most."""
    deadline_s: float = Field(default=30.0, gt=0, le=3600)
    """Seconds for a request, waiting included; then it is answered with 504."""
    grace_s: float = Field(default=30.0, gt=0, le=3600)
    """Seconds that requests under way have to end when the server is stopped."""

    @model_validator(mode="after")
    def _is_sound(self) -> ServeOptions:
        if self.mode != "bm25" and self.embeddings is None:
            raise ConfigError(
                f"--mode {self.mode}: needs --embeddings.model and its base-url, or"
                " --embeddings.directory"
            )
        if self.embeddings is not None and not self.embeddings.embeds:
            raise ConfigError("--embeddings.base-url: is needed, for queries are embedded there")
        return self

"""Texts as unit vectors, by an OpenAI-compatible `/v1/embeddings` endpoint.

This is the only layer that sends a request again; which answers that is for, and how long the pause
is, `turnwise.retry` says.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from turnwise.config import ConfigError
from turnwise.models.answer import NoAnswer, Unusable
from turnwise.models.connections import Connections
from turnwise.printable import one_line
from turnwise.retry import Backoff, is_transient, retry_after_s

from apps.services.retrieval.options import EmbeddingOptions

_MAX_WAIT_S = 60.0
_EXCERPT = 300
_MIN_SECRET_CHARACTERS = 8


class EmbeddingError(Exception):
    """The endpoint gave no vectors; the message says where and why."""


class EmbeddingRefused(EmbeddingError):
    """The endpoint won't embed these texts, however often it is asked."""


class _Entry(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Entry]


class Embedder:
    """Asks one model. Attributes: `model`, and `requests` and `retries` so far."""

    def __init__(
        self, options: EmbeddingOptions, *, environ: Mapping[str, str] = os.environ
    ) -> None:
        """Raises ConfigError if the key's variable is not set or can't be sent."""
        self.model = options.model
        self._options = options
        self._key = _key(options.key_env, environ)
        url = f"{options.base_url.rstrip('/')}/embeddings"
        self._connections = Connections(url, attempt_s=options.attempt_s, hide=self._hide)
        self._backoff = Backoff()
        self.requests = 0
        self.retries = 0

    async def embed(self, texts: Sequence[str]) -> np.ndarray:
        """float32[texts, dimension], each of length 1.

        Raises:
            EmbeddingRefused: a status that another attempt would not change.
            EmbeddingError: no answer in all attempts, or vectors that are not usable.
        """
        size = self._options.batch
        parts = [
            await self._ask(texts[start : start + size]) for start in range(0, len(texts), size)
        ]
        if len({part.shape[1] for part in parts}) != 1:
            raise EmbeddingError(f"{self._connections.url}: vectors of different dimensions")
        return np.concatenate(parts)

    async def close(self) -> None:
        """Closes the connections."""
        await self._connections.close()

    async def _ask(self, texts: Sequence[str]) -> np.ndarray:
        payload = msgspec.json.encode(
            {"model": self._options.model, "input": list(texts), "encoding_format": "float"}
        )
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        for failures in range(1, self._options.attempts + 1):
            self.requests += 1
            pause_s = self._backoff.pause_s(failures)
            try:
                answer = await self._connections.post(payload, headers)
            except NoAnswer as error:
                said = str(error)
            except Unusable as error:
                raise self._error(str(error)) from None
            else:
                if answer.status == 200:
                    return self._read(answer.text, len(texts))
                said = f"status {answer.status}: {one_line(self._hide(answer.text), _EXCERPT)}"
                if not is_transient(answer.status):
                    raise EmbeddingRefused(f"{self._connections.url}: {said}")
                asked_s = retry_after_s(answer.headers, answer.text)
                pause_s = pause_s if asked_s is None else min(asked_s, _MAX_WAIT_S)
            if failures < self._options.attempts:
                self.retries += 1
                await asyncio.sleep(pause_s)
        raise self._error(f"no answer in {self._options.attempts} attempts, the last: {said}")

    def _read(self, text: str, count: int) -> np.ndarray:
        try:
            data = sorted(msgspec.json.decode(text, type=_Answer).data, key=lambda one: one.index)
        except msgspec.DecodeError as error:
            raise self._error(f"no list of embeddings: {error}") from None
        if [one.index for one in data] != list(range(count)):
            raise self._error(f"{len(data)} vectors for {count} texts, or wrong numbers of them")
        if len({len(one.embedding) for one in data}) != 1 or not data[0].embedding:
            raise self._error("vectors of different dimensions, or empty ones")
        try:
            return unit_vectors(np.array([one.embedding for one in data], dtype=np.float64))
        except ValueError as error:
            raise self._error(f"text {error}") from None

    def _error(self, said: str) -> EmbeddingError:
        return EmbeddingError(f"{self._connections.url}: {said}")

    def _hide(self, text: str) -> str:
        key = self._key
        return text.replace(key, "[key]") if len(key) >= _MIN_SECRET_CHARACTERS else text


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """`vectors` float[n, dimension], scaled to length 1, as float32.

    Raises:
        ValueError: a row has no direction: a zero or an infinite one. Begins with its number.
    """
    vectors = vectors.astype(np.float64)
    # The largest entry is divided out first, or a large vector's square would overflow.
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    wrong = np.flatnonzero(~(np.isfinite(largest) & (largest > 0)))
    if len(wrong):
        raise ValueError(f"{wrong[0]}: its vector is zero or not finite")
    scaled = vectors / largest
    unit: np.ndarray = (scaled / np.linalg.norm(scaled, axis=1, keepdims=True)).astype(np.float32)
    return unit


def _key(name: str, environ: Mapping[str, str]) -> str:
    if not name:
        return ""
    key = environ.get(name, "").strip()
    if not key:
        raise ConfigError(f"--embeddings.key-env: the environment variable {name} is not set")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"--embeddings.key-env: {name} holds characters that no HTTP header can")
    return key

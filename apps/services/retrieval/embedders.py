"""Who embeds texts: an endpoint or a model of this process, with one face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from apps.services.retrieval.embeddings import Embedder
from apps.services.retrieval.options import EmbeddingOptions


class AnyEmbedder(Protocol):
    """Attributes: `model`, which an index is bound to; `requests` and `retries` so far."""

    model: str
    requests: int
    retries: int

    async def embed(self, texts: Sequence[str]) -> np.ndarray:
        """float32[texts, dimension], each of length 1.

        Raises:
            EmbeddingError: no vectors.
        """

    async def close(self) -> None:
        """Frees what it holds."""


def open_embedder(options: EmbeddingOptions) -> AnyEmbedder:
    """
    Raises:
        ConfigError: the model's folder is not usable, or the endpoint's key is not there.
    """
    if options.directory is None:
        return Embedder(options)
    # It may import torch, which an endpoint has no use for.
    from apps.services.retrieval.local_model import LocalEmbedder, find_model

    return LocalEmbedder(find_model(options.directory), batch=options.batch)

"""Builds the index of a corpus.

    ./pants run apps/services/retrieval:index -- --corpus FILE
    ./pants run apps/services/retrieval:index -- --corpus FILE --embeddings.model NAME \
        --embeddings.base-url http://HOST:30000/v1
    ./pants run apps/services/retrieval:index -- --corpus FILE --embeddings.model NAME \
        --vectors VECTORS.npy
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

from turnwise.arguments import parse_args
from turnwise.command import run_command

from apps.services.retrieval.options import IndexOptions
from apps.services.retrieval.store import build_index


def index(argv: Sequence[str]) -> None:
    """The command.

    Raises:
        ConfigError, PreflightError, RunError: see `build_index`.
    """
    options = parse_args(
        IndexOptions, argv, prog="retrieval:index", description=IndexOptions.__doc__ or ""
    )
    started = time.perf_counter()
    manifest = asyncio.run(build_index(options))
    dense = manifest.dense
    how = f"bm25, {dense.model} ({dense.dimension} dimensions)" if dense else "bm25"
    print(
        f"{options.folder}: {manifest.documents} documents, {how},"
        f" {time.perf_counter() - started:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(run_command(index, sys.argv[1:]))

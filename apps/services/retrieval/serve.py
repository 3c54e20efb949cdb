"""Serves a corpus: `POST /retrieve` as ToolOrchestra's environment has it, and `POST /search`.

    ./pants run apps/services/retrieval:serve -- --corpus FILE
    ./pants run apps/services/retrieval:serve -- --corpus FILE --mode hybrid \
        --embeddings.model NAME --embeddings.base-url http://HOST:30000/v1

SIGTERM and Ctrl-C stop it: nothing new is taken, and what is under way is answered first. A second
one ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
import sys
from collections.abc import Sequence

from aiohttp import web
from turnwise.arguments import parse_args
from turnwise.command import PreflightError, run_command
from turnwise.config import ConfigError
from turnwise.run.disk import reason

from apps.services.retrieval.documents import read_allow_lists
from apps.services.retrieval.embedders import AnyEmbedder, open_embedder
from apps.services.retrieval.embeddings import EmbeddingError
from apps.services.retrieval.options import IndexOptions, ServeOptions
from apps.services.retrieval.server import Service
from apps.services.retrieval.store import Index, build_index, open_index


def serve(argv: Sequence[str]) -> None:
    """The command.

    Raises:
        ConfigError: an option, the corpus, the lists or the index is not usable.
        PreflightError: the endpoint of the embeddings does not serve, or the port is taken.
        KeyboardInterrupt: after Ctrl-C, when what was under way is answered.
    """
    options = parse_args(
        ServeOptions, argv, prog="retrieval:serve", description=ServeOptions.__doc__ or ""
    )
    if asyncio.run(_serve(options)) == signal.SIGINT:
        raise KeyboardInterrupt


async def _serve(options: ServeOptions) -> signal.Signals:
    embedder = open_embedder(options.embeddings) if options.embeddings is not None else None
    try:
        index = await _index(options, embedder)
        allowed = read_allow_lists(options.allow, index.documents) if options.allow else {}
        if embedder is not None:
            await _check_embeddings(embedder, index)
        return await _until_stopped(options, Service(options, index, allowed, embedder))
    finally:
        if embedder is not None:
            await embedder.close()


async def _index(options: ServeOptions, embedder: AnyEmbedder | None) -> Index:
    wanted = None if embedder is None else embedder.model
    if not options.folder.exists():
        if wanted is not None:
            raise ConfigError(
                f"--index {options.folder}: is not there; build it with"
                " apps/services/retrieval:index, which makes the vectors"
            )
        await build_index(IndexOptions(corpus=options.corpus, index=options.index))
    index = open_index(options.folder, options.corpus)
    dense = index.manifest.dense
    if wanted is not None and (dense is None or dense.model != wanted):
        found = f"vectors of {dense.model}" if dense else "no vectors"
        raise ConfigError(
            f"--embeddings: {wanted}: {options.folder} has {found}; name that model, or"
            " build another index with apps/services/retrieval:index"
        )
    return index


async def _check_embeddings(embedder: AnyEmbedder, index: Index) -> None:
    if importlib.util.find_spec("faiss") is None:
        raise PreflightError("--embeddings: the dense search needs faiss: pip install faiss-cpu")
    assert index.manifest.dense is not None
    expected = index.manifest.dense.dimension
    try:
        vectors = await embedder.embed([f"{index.manifest.dense.query_prefix}a query"])
    except EmbeddingError as error:
        raise PreflightError(f"--embeddings: {error}") from None
    if vectors.shape[1] != expected:
        raise PreflightError(
            f"--embeddings: its vectors have {vectors.shape[1]} numbers, those of the"
            f" index {expected}; it is not the model that the index was built with"
        )


async def _until_stopped(options: ServeOptions, service: Service) -> signal.Signals:
    """Serves until a signal comes, which is returned."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[signal.Signals] = loop.create_future()

    def stop(by: signal.Signals) -> None:
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
        stopped.set_result(by)

    runner = web.AppRunner(
        service.app(),
        access_log=None,
        shutdown_timeout=options.grace_s,
        handler_cancellation=True,
    )
    searching = asyncio.create_task(service.run())
    try:
        await runner.setup()
        try:
            await web.TCPSite(runner, options.host, options.port).start()
        except OSError as error:
            raise PreflightError(
                f"--host {options.host} --port {options.port}: {reason(error)}"
            ) from None
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, stop, one)
        host, port = runner.addresses[0][:2]
        print(f"http://{host}:{port} serves {options.corpus} ({options.mode})", flush=True)
        by = await stopped
        service.stopping = True
        return by
    finally:
        await runner.cleanup()
        searching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await searching


if __name__ == "__main__":
    sys.exit(run_command(serve, sys.argv[1:]))

"""The page's server, over a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from turnwise.view.command import LOOPBACK
from turnwise.view.server import ViewServer


@asynccontextmanager
async def serving(root: Path, token: str | None = None) -> AsyncIterator[str]:
    """The address at which `root` is served, without a slash at its end."""
    app = ViewServer(root, LOOPBACK, token).app()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()

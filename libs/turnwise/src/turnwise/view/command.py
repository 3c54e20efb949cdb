"""The command: looks at a folder of runs in a browser."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web
from pydantic import Field

from turnwise.arguments import parse_args
from turnwise.command import PreflightError
from turnwise.config import CommandConfig, ConfigError
from turnwise.view.server import ViewServer

DESCRIPTION = (
    "Serves a page over a folder of runs, under way or ended; the folder is the first word, before"
    " all options. It reads them and, without --control, writes nothing. Exit codes: 0 ok, 2 usage,"
    " 3 port taken."
)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ViewOptions(CommandConfig):
    """Options of the page's server."""

    runs_dir: Path = Path("runs")
    """Folder that holds runs, in folders of its own too, or one run."""
    host: str = "127.0.0.1"
    """Address to listen on; another than loopback shows the runs to everyone who reaches it."""
    port: int = Field(8765, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    names: tuple[str, ...] = ()
    """Further names that browsers may reach the server by, such as this machine's."""
    control: bool = False
    """Let the page pause, stop and change runs, for who has the address that is printed."""


def view(argv: Sequence[str]) -> None:
    """Serves until it is interrupted."""
    if argv and not argv[0].startswith("-"):
        argv = ["--runs-dir", *argv]
    options = parse_args(ViewOptions, argv, prog="view", description=DESCRIPTION)
    if not options.runs_dir.is_dir():
        what = "is a file" if options.runs_dir.exists() else "no such folder"
        raise ConfigError(f"--runs-dir {options.runs_dir}: {what}; name a folder with runs")
    asyncio.run(_serve(options))


async def _serve(options: ViewOptions) -> None:
    token = secrets.token_urlsafe(24) if options.control else None
    server = ViewServer(options.runs_dir, known_names(options), token)
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, options.host, options.port).start()
        except OSError as error:
            reason = error.strerror or str(error)
            raise PreflightError(
                f"--host {options.host} --port {options.port}: {reason}; name another port, or 0"
                " for a free one"
            ) from None
        port = runner.addresses[0][1]
        shown = f"[{options.host}]" if ":" in options.host else options.host
        query = f"?token={token}" if token is not None else ""
        print(f"{options.runs_dir} at http://{shown}:{port}/{query} (Ctrl-C ends it)", flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def known_names(options: ViewOptions) -> set[str]:
    """Host names that a browser may name: loopback's, the address, this machine's, `--names`."""
    names = {*LOOPBACK, options.host.lower(), *(name.lower() for name in options.names)}
    if not _is_loopback(options.host):
        names.add(socket.gethostname().lower())
    return names


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

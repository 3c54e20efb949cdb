"""A server of this machine that belongs to a run: started, waited for, ended with it.

    server = Server(words, url, log=folder.logs / "engine.log")
    await server.start(deadline_s=600)      # until GET /health says 200
    if server.ended: print(server.said())
    await server.close()

`guard` stands between: it ends the server's whole process group when this process is gone, also
by SIGKILL, and a Ctrl-C at the terminal does not reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp

from turnwise.command import PreflightError
from turnwise.engine import guard
from turnwise.printable import one_line

POLL_S = 0.25
HEALTH_S = 30.0
"""For one answer: SGLang's samples a token for it."""
TAIL_LINES = 12
LARGEST_PORT = 65535
SGLANG_LARGEST_PORT = LARGEST_PORT - 10_000
"""SGLang 0.5.15 keeps the port 10000 above its own for gRPC, and starts nowhere without one."""
PORTS_BELOW = 1000
TAIL_BYTES = 64 * 2**10
# What leads to packages of a PEX, which are this process's alone.
_NOT_INHERITED = ("PEX", "PANTS")


class Server:
    """A process group of its own, and its log. Used from one event loop.

    Args:
        words: The command; its first word is an interpreter or a program.
        url: Where it will answer, `http://host:port`.
        log: Takes what it prints, after what is there.
        environment: Beside this process's.
    """

    def __init__(
        self,
        words: Sequence[str],
        url: str,
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.words, self.url = tuple(words), url
        self._log, self._environment = log, dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._begin = 0

    @property
    def ended(self) -> bool:
        """Whether it was started and runs no more."""
        return self._process is not None and self._process.returncode is not None

    def said(self) -> str:
        """How it ended, and the last lines of its log."""
        code = None if self._process is None else self._process.returncode
        how = "runs" if code is None else f"ended with exit code {code}"
        return f"the server {how}; the last lines of {self._log}:\n{self._tail()}"

    async def start(self, deadline_s: float) -> None:
        """Starts it and waits until it is healthy.

        Raises:
            PreflightError: it can't be run, it ended, or it is not healthy in time; with the last
                lines of its log. It is gone then.
        """
        self._begin = self._log.stat().st_size if self._log.exists() else 0
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)
        }
        guarded = [sys.executable, "-I", guard.__file__, str(os.getpid()), *self.words]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *guarded,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**inherited, **self._environment},
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(deadline_s):
                await self._healthy()
        except TimeoutError:
            said = self.said()
            await self.close()
            raise PreflightError(f"not ready in {deadline_s:g} s: {said}") from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends it with everything that it started; returns when they are gone."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(3 * guard.GRACE_S):
                await process.wait()
        except TimeoutError:
            # The server itself dies with its guard.
            process.kill()
            await process.wait()

    async def _healthy(self) -> None:
        timeout = aiohttp.ClientTimeout(total=HEALTH_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                if self.ended:
                    raise PreflightError(self.said())
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with session.get(f"{self.url}/health") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(POLL_S)

    def _tail(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(self._begin, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except OSError as error:
            return f"({error.strerror or error})"
        lines = [one_line(line, 300) for line in text.splitlines() if line.strip()]
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:]) or "  (it printed nothing)"


def free_port(largest: int = LARGEST_PORT) -> int:
    """A port of this machine that nobody listens on now.

    Args:
        largest: What the system offers beyond it is passed by.
    """
    with contextlib.ExitStack() as taken:
        while True:
            one = taken.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            # Those that are held are not offered again; the ones a little below are no system's.
            if port <= largest or is_free(port := largest - port % PORTS_BELOW):
                return port


def is_free(port: int) -> bool:
    """Whether something could listen on a port of this machine."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

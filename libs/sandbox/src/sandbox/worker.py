"""The parent's side of one waiting interpreter: start, jobs over its control socket, end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from typing import Any

from sandbox import interpreter
from sandbox.box import box_command
from sandbox.interpreter import Interpreter, SandboxUnavailable
from sandbox.result import Tier

START_S = 120.0
STOP_S = 10.0
ANSWER_S = 150.0
"""Seconds for set-up, waiting for a processor and removal, on top of the wall-clock limit."""
_SEND_INTERVAL_S = 0.005
_ERROR_BYTES = 4096


class WorkerGone(Exception):
    """The interpreter ended before it answered; the message carries its last words."""


class Job:
    """One snippet on its way: what goes out, what comes back, and the socket for both."""

    def __init__(self, code: bytes, stdin: bytes) -> None:
        self.code = code
        self.stdin = stdin
        self._socket: socket.socket | None = None
        self.abandoned = False
        self._streams = b""

    def connect(self) -> socket.socket:
        """A new connection; returns the other side, for the supervisor.

        Raises:
            EOFError: when nobody waits for the job any more.
        """
        if self.abandoned:
            raise EOFError("cancelled")
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        return theirs

    async def talk(self) -> dict[str, Any]:
        """Sends the program and reads the answer to its end.

        Raises:
            EOFError: when the connection ends without one.
        """
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        # A supervisor that broke before the program was read has answered all the same.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await loop.sock_sendall(self._socket, self.code + self.stdin)
        answer = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while part := await loop.sock_recv(self._socket, 1 << 18):
                answer += part
        if len(answer) < 4:
            raise EOFError("the supervisor ended without an answer")
        end = 4 + int.from_bytes(answer[:4], "little")
        facts: dict[str, Any] = json.loads(answer[4:end])
        self._streams = bytes(answer[end:])
        return facts

    def streams(self, facts: Mapping[str, Any]) -> tuple[str, str]:
        """Standard output and error of the answer, as text."""
        split = facts.get("out_bytes", 0)
        return (
            self._streams[:split].decode("utf-8", "replace"),
            self._streams[split:].decode("utf-8", "replace"),
        )

    def abandon(self) -> None:
        """Makes the supervisor end the snippet; the answer will be none."""
        self.abandoned = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends the connection, and the snippet if it still runs."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Worker:
    """A waiting interpreter that forks for each job; see `child.zygote`."""

    def __init__(self, python: Interpreter, tier: Tier, *, box_mb: int) -> None:
        """Args: the interpreter, its isolation, and the size of a box's temporary file system."""
        self._python = python
        self._tier: Tier = tier
        self._box_mb = box_mb
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._errors = bytearray()
        self._listening: asyncio.Task[None] | None = None
        self._base = ""
        self.jobs = 0
        self.running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.quotas = False
        """Whether each working folder is a file system of limited size."""
        self.shared = True
        """Whether snippets can run beside each other: none could read or fill another's folder."""

    @property
    def alive(self) -> bool:
        """Whether the interpreter runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Starts the interpreter and waits until its packages are imported.

        Raises:
            SandboxUnavailable: with its last words, when it ends or does not answer in time.
        """
        command, base = self._command()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._control = ours
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    env=interpreter.ENVIRONMENT,
                    cwd="/",
                    start_new_session=True,
                )
            self._listening = asyncio.create_task(self._listen(self._process))
            async with asyncio.timeout(START_S):
                await self._send(json.dumps(self._settings(base)).encode(), None)
                answer = await asyncio.get_running_loop().sock_recv(ours, 65536)
        except (OSError, TimeoutError) as error:
            raise SandboxUnavailable(f"{command[0]}: {await self._words(error)}") from None
        if not answer:
            raise SandboxUnavailable(f"{command[0]}: {await self._words(None)}")
        ready = json.loads(answer)
        self.quotas = ready["quotas"]
        boxed = self._tier == "namespaces"
        self.shared = not boxed or (ready["landlock"] > 0 and self.quotas)

    def _command(self) -> tuple[list[str], str]:
        python = [self._python.executable, *interpreter.FLAGS, "-c", interpreter.BOOT]
        if self._tier == "namespaces":
            return [*box_command(self._python, size_mb=self._box_mb), *python], "/tmp/work"
        self._base = tempfile.mkdtemp(prefix="turnwise-sandbox-")
        os.chmod(self._base, 0o711)
        return python, self._base

    def _settings(self, base: str) -> dict[str, Any]:
        python = self._python
        return {
            "modules": interpreter.modules(),
            "path": python.path,
            "importable": python.importable,
            "packages": python.packages,
            "read": python.read(),
            "listed": python.listed(),
            "base": base,
            "calls": self._tier != "none",
            "boxed": self._tier == "namespaces",
        }

    async def run(self, job: Job, header: Mapping[str, Any]) -> dict[str, Any]:
        """Runs one job and returns the facts of its result; `job.streams` has the output.

        Raises:
            WorkerGone: when the interpreter or the supervisor ended without an answer.
        """
        self.jobs += 1
        self.running += 1
        self._idle.clear()
        try:
            with job.connect() as theirs:
                await self._send(json.dumps(header).encode(), theirs)
            async with asyncio.timeout(header["wall_s"] + ANSWER_S):
                return await job.talk()
        except (OSError, EOFError, ValueError) as error:
            raise WorkerGone(await self._words(error)) from error
        finally:
            job.close()
            self.running -= 1
            if not self.running:
                self._idle.set()

    async def _send(self, message: bytes, job: socket.socket | None) -> None:
        assert self._control is not None
        while True:
            try:
                socket.send_fds(self._control, [message], [] if job is None else [job.fileno()])
                return
            except BlockingIOError:
                await asyncio.sleep(_SEND_INTERVAL_S)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keeps the last words, and never lets the pipe fill up."""
        assert process.stderr is not None
        while data := await process.stderr.read(_ERROR_BYTES):
            self._errors += data
            del self._errors[:-_ERROR_BYTES]
        await process.wait()

    async def _words(self, error: BaseException | None) -> str:
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=0.2)
        words = self._errors.decode(errors="replace").strip().splitlines()
        reason = "no answer" if error is None else f"{type(error).__name__}: {error}".rstrip(": ")
        return "; ".join([reason, *words[-1:]])

    async def stop(self) -> None:
        """Ends the interpreter once its jobs are done, kills it after `STOP_S`; idempotent.

        Supervisors outlive their interpreter, so their folders stay until they have answered.
        """
        await self._idle.wait()
        if self._control is not None:
            self._control.close()
        if self._process is not None and self._listening is not None:
            await asyncio.wait([self._listening], timeout=STOP_S)
            if self.alive:
                self._process.kill()
            await self._listening
        if self._base:
            await asyncio.to_thread(shutil.rmtree, self._base, ignore_errors=True)

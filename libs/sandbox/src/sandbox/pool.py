"""Runs model-written Python: the pool of waiting interpreters, and the tier that is in force."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import secrets
import sys
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from sandbox import interpreter
from sandbox.config import SandboxConfig
from sandbox.interpreter import Interpreter, SandboxUnavailable
from sandbox.probe import SELF_CHECK, unmet
from sandbox.result import (
    Denied,
    OutOfMemory,
    OutputTruncated,
    Ran,
    Result,
    SandboxBroken,
    Tier,
    TimedOut,
)
from sandbox.worker import Job, Worker, WorkerGone

_WALLED: tuple[Tier, ...] = ("namespaces", "landlock")
_SPARE_DISK_MB = 16
_PROGRAM_BYTES = 4 << 20
_sandboxes = itertools.count()


class Sandbox:
    """A place to run snippets; `start` it, `run` any number at once, `close` it.

    Nothing here blocks the event loop. Snippets share no file, no process and no memory.
    """

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self.refused: dict[Tier, str] = {}
        """Tiers that were asked for or stronger than the one in force, with the reason against."""
        self._tier: Tier | None = None
        self._python: Interpreter | None = None
        self._first_user = 0
        self._quotas = False
        self._workers: list[Worker] = []
        self._probing = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._closing = False
        self._free = asyncio.LifoQueue[int]()
        self._jobs: dict[asyncio.Task[Result], Job] = {}
        self._chores: set[asyncio.Task[None]] = set()
        for place in reversed(range(self.config.concurrency)):
            self._free.put_nowait(place)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def tier(self) -> Tier:
        """The isolation in force, after `start`."""
        if self._tier is None:
            raise RuntimeError("the sandbox is not started")
        return self._tier

    @property
    def quotas(self) -> bool:
        """Whether a file system of limited size holds each working folder, after `start`.

        Where none can be mounted it is looked at, and what is deleted but still open or mapped is
        not seen (docs/sandbox.md, "Known gaps").
        """
        return self._quotas

    @property
    def missing(self) -> dict[str, str]:
        """Configured packages that snippets can't import here, with the reason."""
        return {} if self._python is None else dict(self._python.missing)

    async def start(self) -> Tier:
        """Finds the tier, checks that it holds and starts the first interpreter.

        Raises:
            SandboxUnavailable: when no tier that the configuration allows holds here.
        """
        async with self._probing:
            return self._tier or await self._probe()

    async def _probe(self) -> Tier:
        if sys.platform != "linux":
            raise SandboxUnavailable(f"the sandbox needs Linux; this is {sys.platform}")
        self._first_user = _first_user()
        self._python = await interpreter.find(self.config.packages)
        isolation = self.config.isolation
        for tier in _WALLED if isolation == "auto" else (isolation,):
            why_not = await self._try(tier)
            if why_not is None:
                return tier
            self.refused[tier] = why_not
        reasons = "; ".join(f"{tier}: {reason}" for tier, reason in self.refused.items())
        raise SandboxUnavailable(
            f"isolation {isolation!r} can't be had on this machine ({reasons}); install "
            "bubblewrap or use a kernel with Landlock, or set isolation to 'none' to run "
            "model-written code without walls"
        )

    async def _try(self, tier: Tier) -> str | None:
        """Puts `tier` in force; the reason if it can't be, and then nothing of it is left."""
        if (reason := unmet(tier)) is not None:
            return reason
        self._tier = tier
        try:
            await self._worker()
            result = await self.run(SELF_CHECK if tier != "none" else "print('held')")
        except SandboxUnavailable as error:
            reason = str(error)
        else:
            if isinstance(result, Ran) and result.out == "held\n":
                return None
            reason = f"self-check: {result}"
        await self.close()
        return reason

    async def run(self, code: str, stdin: str = "") -> Result:
        """Runs `code` as a program of its own, once a place is free.

        Cancelling this ends the snippet; what is left of it is gone when `close` returns.

        Args:
            code: Python source, at most 4 MiB of UTF-8.
            stdin: Its standard input.

        Raises:
            RuntimeError: when the sandbox is not started or was closed.
        """
        tier = self.tier
        payload = code.encode("utf-8", "surrogatepass"), stdin.encode("utf-8", "surrogatepass")
        if sum(map(len, payload)) > _PROGRAM_BYTES:
            what = f"program and input are over {_PROGRAM_BYTES >> 20} MiB"
            return Denied(out="", err="", seconds=0.0, tier=tier, what=what)
        place = await self._free.get()
        if self._closing:
            self._free.put_nowait(place)
            raise RuntimeError("the sandbox was closed")
        job = Job(*payload)
        task = asyncio.create_task(self._run(job, place, tier))
        self._jobs[task] = job
        task.add_done_callback(self._jobs.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            job.abandon()
            raise

    async def _run(self, job: Job, place: int, tier: Tier) -> Result:
        try:
            worker = await self._worker()
            try:
                facts = await worker.run(job, self._header(job, place))
            except WorkerGone:
                # One whose interpreter died had no fair try; one whose supervisor died had.
                if worker.alive or job.abandoned:
                    raise
                worker = await self._worker()
                facts = await worker.run(job, self._header(job, place))
            self._recycle(worker)
            return self._result(facts, job, tier)
        except (WorkerGone, SandboxUnavailable) as error:
            return SandboxBroken(out="", err="", seconds=0.0, tier=tier, what=str(error))
        finally:
            self._free.put_nowait(place)

    def _recycle(self, worker: Worker) -> None:
        """Replaces an interpreter that has served enough; what it still runs comes to its end."""
        if worker.jobs >= self.config.recycle_after and worker in self._workers:
            self._workers.remove(worker)
            self._later(worker.stop())
            self._later(self._warm())

    def _header(self, job: Job, place: int) -> dict[str, Any]:
        config = self.config
        return {
            "id": secrets.token_hex(16),
            "user": self._first_user + place,
            "wall_s": config.wall_s,
            # Threads may use more processor time than the clock shows.
            "cpu_s": math.ceil(config.wall_s) + 1,
            "memory": config.memory_mb << 20,
            "disk_bytes": config.disk_mb << 20,
            "file_bytes": config.file_mb << 20,
            "output_bytes": config.output_kb << 10,
            "code_bytes": len(job.code),
            "stdin_bytes": len(job.stdin),
        }

    def _result(self, facts: dict[str, Any], job: Job, tier: Tier) -> Result:
        out, err = job.streams(facts)
        common: dict[str, Any] = {
            "out": out,
            "err": err,
            "seconds": facts.get("seconds", 0.0),
            "tier": tier,
        }
        match facts["ending"]:
            case "ran":
                return Ran(**common, code=facts["code"])
            case "timed_out":
                return TimedOut(**common, limit_s=self.config.wall_s)
            case "out_of_memory":
                return OutOfMemory(**common, limit_mb=self.config.memory_mb)
            case "truncated":
                return OutputTruncated(**common, limit_kb=self.config.output_kb)
            case "denied":
                return Denied(**common, what=facts["what"])
        return SandboxBroken(**common, what=facts["what"])

    async def _worker(self) -> Worker:
        """A living interpreter with room for one more job, started if need be."""
        assert self._python is not None
        async with self._starting:
            self._workers = [worker for worker in self._workers if await self._lives(worker)]
            for worker in self._workers:
                if worker.shared or not worker.running:
                    return worker
            box_mb = self.config.disk_mb + _SPARE_DISK_MB
            worker = Worker(self._python, self.tier, box_mb=box_mb)
            try:
                await worker.start()
            except BaseException:
                await worker.stop()
                raise
            self._workers.append(worker)
            self._quotas = worker.quotas or self._tier == "namespaces"
            return worker

    async def _lives(self, worker: Worker) -> bool:
        if not worker.alive:
            self._later(worker.stop())
        return worker.alive

    async def _warm(self) -> None:
        with contextlib.suppress(SandboxUnavailable):
            await self._worker()

    def _later(self, chore: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def close(self) -> None:
        """Ends running snippets and all interpreters, and removes every file; idempotent."""
        self._closing = True
        for job in self._jobs.values():
            job.abandon()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        self._tier = None
        await asyncio.gather(*self._chores, return_exceptions=True)
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.stop() for worker in workers))
        self._closing = False


def _first_user() -> int:
    """First of the user ids for snippets: apart from people's, and from other sandboxes' of root,
    since the limit on threads counts those of a user.

    In a user namespace of the usual 65,536 ids they lie in its upper part.
    """
    with open("/proc/self/uid_map", encoding="ascii") as rows:
        inside, _, count = max(
            (tuple(map(int, row.split())) for row in rows), key=lambda row: row[2]
        )
    if count >= 1 << 31:
        return (1 << 30) + next(_sandboxes) % 32 * (1 << 25) + os.getpid() % (1 << 15) * 1024
    return inside + count // 2 + (os.getpid() + next(_sandboxes)) % 31 * 1024

"""Runs the hostile programs against a sandbox and says which attempts were held."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.resources
import inspect
import json
import os
import secrets
import shutil
import socket
import stat
import tempfile
import tomllib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from sandbox.config import SandboxConfig
from sandbox.conformance import prelude
from sandbox.pool import Sandbox
from sandbox.result import Result, SandboxBroken, Tier

FAMILIES = (
    "files",
    "network",
    "processes",
    "memory",
    "disk",
    "output",
    "cpu",
    "descriptors",
    "secrets",
    "syscalls",
)
MARK = "ESCAPED"


def limits(tier: Tier) -> SandboxConfig:
    """Limits that the programs run into within a second or so."""
    return SandboxConfig(
        isolation=tier, wall_s=1.0, memory_mb=256, disk_mb=32, file_mb=4, concurrency=2
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One hostile program.

    Attributes:
        family: What it attacks.
        name: Unique in its family.
        tries: What it tries, in words.
        code: Its source, with places to fill in.
        stdin: Its standard input.
        ends: Names of the results it may come to; empty: any but a broken sandbox.
        harmless: It does no harm even where it is not held.
        differs: Each line of its output must be another in another run.
        nameless: It fills the disk with what has no name, which only a file system of limited
            size holds.
    """

    family: str
    name: str
    tries: str
    code: str
    stdin: str = ""
    ends: tuple[str, ...] = ()
    harmless: bool = False
    differs: bool = False
    nameless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of one program.

    Attributes:
        program: What was run.
        result: What the sandbox returned.
        wrong: What shows that it was not held, or ended as it must not; empty if all is well.
        excused: It was not tried to the end, for want of a file system of limited size here.
    """

    program: Program
    result: Result
    wrong: str
    excused: bool = False


def programs() -> list[Program]:
    """All programs, in the order of the families."""
    folder = importlib.resources.files("sandbox.conformance")
    found = []
    for family in FAMILIES:
        table = tomllib.loads(folder.joinpath(f"{family}.toml").read_text("utf-8"))
        for entry in table["program"]:
            entry["ends"] = tuple(entry.get("ends", ()))
            found.append(Program(family=table["family"], **entry))
    return found


class Target:
    """What the programs are after: a file, folders, sockets, a process, a secret."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.secret = secrets.token_hex(16)
        self.canary = os.path.join(folder, "canary")
        self.open = os.path.join(folder, "open")
        self.reached: list[str] = []
        self._sockets: list[socket.socket] = []
        self._locked: list[TextIO] = []
        self._values: dict[str, str] = {}
        self._process: asyncio.subprocess.Process | None = None

    async def lay_out(self) -> None:
        """Creates everything, as open to other users as it can be."""
        os.chmod(self.folder, 0o777)
        with open(self.canary, "w", encoding="utf-8") as file:
            file.write(self.secret)
        os.chmod(self.canary, 0o666)
        os.mkdir(self.open)
        os.chmod(self.open, 0o777)
        with open(os.path.join(self.open, "keep"), "w", encoding="utf-8"):
            pass
        self.link = os.path.join(self.folder, "link")
        os.symlink(self.secret, self.link)
        # Locks on a file that snippets may read too, of both kinds, for whoever asks.
        self._locked = [open(json.__file__, encoding="utf-8") for _ in range(2)]
        fcntl.flock(self._locked[0], fcntl.LOCK_SH)
        fcntl.lockf(self._locked[1], fcntl.LOCK_SH)
        self._before = self._state()
        abstract = f"turnwise-{self.secret}"
        port = self._listen(socket.AF_INET, ("127.0.0.1", 0))
        path = os.path.join(self.folder, "stream")
        self._listen(socket.AF_UNIX, path)
        self._listen(socket.AF_UNIX, b"\0" + abstract.encode())
        datagram = os.path.join(self.folder, "datagram")
        self._listen(socket.AF_UNIX, datagram, socket.SOCK_DGRAM)
        os.chmod(path, 0o777)
        os.chmod(datagram, 0o777)
        self._process = await asyncio.create_subprocess_exec("sleep", "600", env={})
        self._values = {
            "@CANARY@": self.canary,
            "@OPEN@": self.open,
            "@PORT@": str(port),
            "@UNIX@": path,
            "@ABSTRACT@": abstract,
            "@DATAGRAM@": datagram,
            "@LINK@": self.link,
            "@PID@": str(self._process.pid),
            "@SECRET_A@": self.secret[:16],
            "@SECRET_B@": self.secret[16:],
        }

    def _listen(self, family: int, address: object, kind: int = socket.SOCK_STREAM) -> int:
        listener = socket.socket(family, kind)
        self._sockets.append(listener)
        listener.setblocking(False)
        listener.bind(address)  # type: ignore[arg-type]
        if kind == socket.SOCK_STREAM:
            listener.listen()
        name = listener.getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    def fill(self, program: Program, disk_mb: int) -> str:
        """The program's source, behind the prelude and with all places filled in."""
        code = program.code
        for place, value in (self._values | {"@DISK@": str(disk_mb << 20)}).items():
            code = code.replace(place, value)
        return f"{_prelude()}\n{code}"

    def traces(self) -> str:
        """What an attempt changed or reached, in words; empty if nothing."""
        if self._state() != self._before:
            return "changed files outside"
        for listener in self._sockets:
            with contextlib.suppress(BlockingIOError):
                if listener.type == socket.SOCK_DGRAM:
                    listener.recv(1)
                else:
                    listener.accept()[0].close()
                return f"reached {listener.getsockname()!r}"
        if self._process is None or self._process.returncode is not None:
            return "ended another process"
        return ""

    def _state(self) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        inner = (os.path.join(self.open, name) for name in sorted(os.listdir(self.open)))
        for path in (self.canary, *inner):
            facts = os.lstat(path)
            content = ""
            if stat.S_ISREG(facts.st_mode):
                with open(path, encoding="utf-8") as file:
                    content = file.read()
            times = facts.st_mtime_ns, facts.st_ctime_ns
            found.append((path, facts.st_mode, facts.st_uid, times, content))
        return found

    async def clear(self) -> None:
        """Takes everything away."""
        for listener in self._sockets:
            listener.close()
        for file in self._locked:
            file.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def _prelude() -> str:
    return inspect.getsource(prelude)


@contextlib.asynccontextmanager
async def target() -> AsyncIterator[Target]:
    """A target to aim at, gone afterwards."""
    folder = tempfile.mkdtemp(prefix="turnwise-target-")
    made = Target(folder)
    try:
        await made.lay_out()
        yield made
    finally:
        await made.clear()
        shutil.rmtree(folder)


async def attempt(sandbox: Sandbox, program: Program, aim: Target) -> Attempt:
    """Runs one program and looks for what it must not have done."""
    if program.name == "earlier-snippet":
        await sandbox.run(f"kept = ['{aim.secret}', b'{aim.secret}']\nprint(kept)", aim.secret)
    if program.nameless and not sandbox.quotas:
        return Attempt(program=program, result=await sandbox.run(""), wrong="", excused=True)
    result = await sandbox.run(aim.fill(program, sandbox.config.disk_mb), program.stdin)
    ending = type(result).__name__
    text = result.out + result.err
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    if isinstance(result, SandboxBroken):
        wrong = f"the sandbox broke: {result.what}"
    elif lines:
        wrong = f"{len(lines)} attempts went through, first: {lines[0][:160]}"
    elif aim.secret in text:
        wrong = "the secret was read"
    elif program.ends and ending not in program.ends:
        wrong = f"ended as {ending}, not as {' or '.join(program.ends)}: {result!r:.300}"
    elif sandbox.config.wall_s * 3 + 5 < result.seconds:
        wrong = f"ran for {result.seconds:.1f} s"
    elif program.differs and (same := await _common_lines(sandbox, program, aim, result)):
        wrong = f"the same in two runs: {same}"
    else:
        wrong = aim.traces()
    return Attempt(program=program, result=result, wrong=wrong)


async def _common_lines(
    sandbox: Sandbox, program: Program, aim: Target, result: Result
) -> set[str]:
    other = await sandbox.run(aim.fill(program, sandbox.config.disk_mb), program.stdin)
    return set(result.out.splitlines()) & set(other.out.splitlines())


async def run_suite(sandbox: Sandbox, chosen: Sequence[Program]) -> list[Attempt]:
    """Runs `chosen` one after the other against one target."""
    async with target() as aim:
        os.environ["TURNWISE_CANARY"] = aim.secret
        try:
            return [await attempt(sandbox, program, aim) for program in chosen]
        finally:
            del os.environ["TURNWISE_CANARY"]


def descendants() -> set[int]:
    """Process ids of all that this process and its children have started, zombies included."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{name}/stat", encoding="utf-8") as facts,
            ):
                parents[int(name)] = int(facts.read().rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while added := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= added
    return found - {os.getpid()}


def resident_bytes() -> int:
    """Physical memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

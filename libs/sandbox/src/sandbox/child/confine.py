"""Confinement of the calling process, in the order that works; there is no way back.

Files by Landlock, system calls by seccomp-BPF, resources by rlimits, identity by a user id of the
snippet's own where the process is allowed to change it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.child import landlock, seccomp

_PDEATHSIG, _DUMPABLE, _KEEPCAPS, _NO_NEW_PRIVS = 1, 4, 8, 38
_CHOWN, _DAC_OVERRIDE, _DAC_READ_SEARCH, _SETGID, _SETUID = 0, 1, 2, 6, 7
_CAPABILITY_VERSION = 0x20080522
_DESCRIPTORS, _THREADS, _SPARE_THREADS = 64, 64, 1024
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one snippet may use: seconds, and bytes of address space, per file and on disk."""

    cpu_s: int
    memory: int
    file: int


class Walls:
    """What is the same for every snippet of an interpreter, prepared once."""

    def __init__(
        self,
        *,
        read: Sequence[str],
        listed: Sequence[str],
        base: str,
        calls: bool,
        boxed: bool,
        quotas: bool,
    ):
        """Opens the folders that snippets may read.

        Args:
            read: Files and folders that snippets may read.
            listed: Folders whose names they may list, without reading what is in them.
            base: Folder that holds the working folders.
            calls: Whether system calls are filtered; without, a snippet is not confined.
            boxed: Whether nothing of the machine's files is in sight.
            quotas: Whether a working folder is a file system of its own.
        """
        self.calls = calls
        self.boxed = boxed
        self.quotas = quotas
        self.files = calls and landlock.version() > 0
        self.drops_user = (
            calls and os.geteuid() == 0 and _has(_CHOWN, _DAC_OVERRIDE, _SETGID, _SETUID)
        )
        # An interpreter or a temporary folder below, say, root's home is out of another user's
        # reach. Reading past permissions then stays, within what Landlock or the box leaves.
        self.search = self.drops_user and not all(map(_reachable, (*read, base)))
        # Docker gives root no such capability; then root's id stays, without any.
        self.drops_user &= not self.search or _has(_DAC_READ_SEARCH)
        self.threads = _THREADS if self.drops_user else _threads_of(os.getuid()) + _SPARE_THREADS
        self._open: list[tuple[int, int]] = []
        if self.files:
            rights = [*((path, landlock.READ) for path in read)]
            rights += [(path, landlock.LIST) for path in listed]
            rights += [(path, landlock.DEVICE) for path in _DEVICES]
            for path, right in rights:
                try:
                    file = os.open(path, os.O_PATH | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue
                self._open.append((file, _file_rights(file, right)))

    def confine(self, work: str, user: int | None, limits: Limits, supervisor: int) -> None:
        """Confines this process to the folder `work`, which it owns.

        Args:
            work: The only folder that it may write to.
            user: User and group id of its own, or None to keep the present one.
            limits: Of this process.
            supervisor: Process id of the parent, whose death ends this process.

        Raises:
            OSError: when a wall can't be put up; the process must end then.
        """
        os.umask(0o077)
        os.chdir(work)
        memory = _own_memory() + limits.memory
        if self.calls:
            _prctl(_NO_NEW_PRIVS, 1)
            folder = os.open(work, os.O_PATH | os.O_CLOEXEC)
            if user is not None:
                _become(user, _DAC_READ_SEARCH if self.search else None)
            else:
                _keep_capabilities(0)
            if self.files:
                landlock.restrict([*self._open, (folder, landlock.WORK)])
            os.close(folder)
            _prctl(_DUMPABLE, 0)
        # After the rules, which may need more descriptors than a snippet gets.
        _limit(limits, memory, self.threads if self.calls else None)
        _prctl(_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != supervisor:
            raise OSError("the supervisor is gone")

    def close_calls(self, user: int | None) -> None:
        """Filters system calls: the last wall, after which only what a snippet may do works."""
        if self.calls:
            seccomp.install(os.getpid(), modes=user is not None, links=self.boxed)


def _own_memory() -> int:
    """Bytes of address space that the interpreter and its libraries take already."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGESIZE")


def _limit(limits: Limits, memory: int, threads: int | None) -> None:
    values = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: limits.file,
        resource.RLIMIT_NOFILE: _DESCRIPTORS,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if threads is not None:
        values[resource.RLIMIT_NPROC] = threads
    for which, value in values.items():
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
    # One second between the signal that says "time is up" and the one that can't be ignored.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))


def _become(user: int, capability: int | None) -> None:
    if capability is not None:
        _prctl(_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _keep_capabilities(0 if capability is None else 1 << capability)


def _keep_capabilities(mask: int) -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    data = struct.pack("=6I", mask, mask, 0, 0, 0, 0)
    if _libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(data)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _has(*capabilities: int) -> bool:
    with open("/proc/self/status", encoding="ascii") as status:
        mask = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff"))
    return all(mask >> capability & 1 for capability in capabilities)


def _prctl(option: int, value: int) -> None:
    arguments = [ctypes.c_ulong(argument) for argument in (value, 0, 0, 0)]
    if _libc.prctl(option, *arguments) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _file_rights(file: int, rights: int) -> int:
    """Landlock refuses a rule about listing for what is not a folder."""
    return rights if stat.S_ISDIR(os.fstat(file).st_mode) else rights & ~landlock.LIST


def _reachable(path: str) -> bool:
    """Whether any user may read `path` and search the folders above it."""
    path = os.path.realpath(path)
    try:
        if not os.stat(path).st_mode & stat.S_IROTH:
            return False
        while path != "/":
            path = os.path.dirname(path)
            if not os.stat(path).st_mode & stat.S_IXOTH:
                return False
    except FileNotFoundError:
        return True  # then there is nothing to read
    return True


def _threads_of(user: int) -> int:
    """How many threads of `user` this process can see: RLIMIT_NPROC counts them all."""
    threads = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    threads += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue  # ended meanwhile
    return threads

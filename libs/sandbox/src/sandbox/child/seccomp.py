"""A seccomp-BPF filter: a list of allowed system calls, everything else refused with EPERM.

The program reads `struct seccomp_data` (linux/seccomp.h): number at 0, architecture at 4,
arguments as 64-bit little-endian words from 16. It is built per process because `kill` is allowed
to the process itself alone. System calls newer than the list answer ENOSYS, as on an older kernel,
so that libc falls back (`clone3` to `clone`, whose flags can be inspected).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct

from sandbox.child.syscalls import ABSENT, ALLOWED, INSPECTED, LINKS, MODES

_LOAD, _JEQ, _JGE, _AND, _RET = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000
_NEWER = 424

_NAMESPACES = 0x7E020000
_THREAD = 0x00010000
_TRUNCATE_UNWRITABLE = os.O_ACCMODE | os.O_TRUNC
_PRCTL = (3, 15, 16, 39, 0x53564D41)  # get dumpable, set and get name, get nnp, name a mapping
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS to FIOCLEX
# Neither F_SETOWN nor F_SETSIG: together they send any signal to any process of the user. For the
# same reason no `timer_create`, which sends any signal, SIGKILL included, to its own process.
_FCNTL = (0, 1, 2, 3, 4, 1030, 1032, 1034)
# F_GETLK to F_SETLKW and the same of open file descriptions, answered as `syscalls.ABSENT` is.
_FCNTL_LOCKS = (5, 6, 7, 36, 37, 38)
_FUTEX_PRIVATE, _FUTEX_COMMAND, _FUTEX_WAITS = 128, 127, (0, 9)

_Instruction = tuple[int, int, int, int]


def supported() -> bool:
    """Whether the filter knows this machine's system call numbers."""
    return platform.machine() in _ARCHITECTURES and struct.calcsize("P") == 8


def install(pid: int, *, modes: bool, links: bool) -> None:
    """Confines the calling thread for good; `no_new_privs` must be set.

    Args:
        pid: Of this process, as it sees itself; the one process it may signal.
        modes: Whether modes of its files may be changed.
        links: Whether symbolic links may be read.

    Raises:
        OSError: when the kernel refuses the filter.
    """
    program = build(pid, modes=modes, links=links)
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    pr_set_seccomp, mode_filter = 22, 2
    if libc.prctl(pr_set_seccomp, mode_filter, ctypes.c_char_p(header), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def build(pid: int, *, modes: bool, links: bool) -> list[_Instruction]:
    """The filter as (code, jump if true, jump if false, constant)."""
    column, architecture = _ARCHITECTURES[platform.machine()]
    program = [
        _load(_ARCH),
        (_JEQ, 1, 0, architecture),
        (_RET, 0, 0, _KILL),
        _load(_NUMBER),
        (_JGE, 0, 1, _X32),
        _refuse(errno.EPERM),
    ]
    allowed = ALLOWED | (MODES if modes else {}) | (LINKS if links else {})
    for table, answer in ((allowed, (_RET, 0, 0, _ALLOW)), (ABSENT, _refuse(0))):
        for numbers in table.values():
            number = numbers[column]
            if number is not None:
                program += [(_JEQ, 0, 1, number), answer]
    for name, numbers in INSPECTED.items():
        number = numbers[column]
        if number is not None:
            body = _inspect(name, pid)
            program += [(_JEQ, 0, len(body), number), *body]
    return [*program, (_JGE, 0, 1, _NEWER), _refuse(errno.ENOSYS), _refuse(errno.EPERM)]


def _inspect(name: str, pid: int) -> list[_Instruction]:
    """Decides on the arguments of call `name`; always returns from the filter."""
    match name:
        case "clone":
            # A thread and nothing else: a snippet has no processes to count, kill and reap.
            return _masked(0, _THREAD | _NAMESPACES, _THREAD)
        case "open":
            return _masked(1, _TRUNCATE_UNWRITABLE, os.O_TRUNC, hit=False)
        case "openat":
            return _masked(2, _TRUNCATE_UNWRITABLE, os.O_TRUNC, hit=False)
        case "kill":
            return _self(0, pid) + _one_of(1, (int(signal.SIGKILL),), hit=False)
        case "tgkill":
            return _self(0, pid) + _one_of(2, (int(signal.SIGKILL),), hit=False)
        case "prlimit64":
            nothing_new = [(_LOAD, 0, 0, _ARGUMENTS + 20), (_JEQ, 1, 0, 0), _refuse(errno.EPERM)]
            return _self(0, 0) + nothing_new + _one_of(2, (0,))
        case "socketpair":
            # Not datagrams: `sendto` would then reach any socket that has a path.
            family = [_argument(0), (_JEQ, 1, 0, 1), _refuse(errno.EPERM)]
            return family + _masked(1, 0xF, 1)
        case "prctl":
            return _one_of(0, _PRCTL)
        case "ioctl":
            return _one_of(1, _IOCTL)
        case "fcntl":
            locks = [(_JEQ, 0, 1, command) for command in _FCNTL_LOCKS]
            answers = [step for lock in locks for step in (lock, _refuse(0))]
            return [_argument(1), *answers, *_one_of(1, _FCNTL)]
        case "futex":
            return _private_futex()
        case "preadv2" | "pwritev2":
            # No flags: one of them asks whether a library's page is in memory already.
            return _one_of(5, (0,))
    raise AssertionError(name)


def _private_futex() -> list[_Instruction]:
    """Allows what is said to stay in this process.

    All others are found by the file and the place that is mapped there, so that snippets could
    wait and wake on a library's. Waiting for a thread's end (`pthread_join`) is such a call: it
    is told to look again.
    """
    waits = [(_JEQ, 0, 1, command) for command in _FUTEX_WAITS]
    return [
        *(_argument(1), (_AND, 0, 0, _FUTEX_PRIVATE), (_JEQ, 0, 1, _FUTEX_PRIVATE)),
        (_RET, 0, 0, _ALLOW),
        *(_argument(1), (_AND, 0, 0, _FUTEX_COMMAND)),
        *(step for wait in waits for step in (wait, _refuse(errno.EAGAIN))),
        _refuse(errno.EPERM),
    ]


def _load(offset: int) -> _Instruction:
    return (_LOAD, 0, 0, offset)


def _argument(index: int) -> _Instruction:
    """Loads the lower half of an argument: the kernel reads these as 32-bit numbers."""
    return _load(_ARGUMENTS + 8 * index)


def _refuse(number: int) -> _Instruction:
    return (_RET, 0, 0, _ERRNO | number)


def _end(allow: bool) -> _Instruction:
    return (_RET, 0, 0, _ALLOW) if allow else _refuse(errno.EPERM)


def _masked(index: int, mask: int, value: int, *, hit: bool = True) -> list[_Instruction]:
    """Allows (or, with `hit` False, refuses) where argument & mask == value."""
    return [_argument(index), (_AND, 0, 0, mask), (_JEQ, 0, 1, value), _end(hit), _end(not hit)]


def _one_of(index: int, values: tuple[int, ...], *, hit: bool = True) -> list[_Instruction]:
    """Allows (or, with `hit` False, refuses) where the argument is one of `values`."""
    tests = [(_JEQ, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [_argument(index), *tests, _end(not hit), _end(hit)]


def _self(index: int, pid: int) -> list[_Instruction]:
    """Refuses unless the argument is `pid`; otherwise goes on."""
    return [_argument(index), (_JEQ, 1, 0, pid), _refuse(errno.EPERM)]

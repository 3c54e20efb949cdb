"""Landlock: which files the calling process may open, for good (linux/landlock.h).

Access rights that a kernel does not know are left out, by the version its own system call
reports. Modes, time stamps and the existence of a path are not governed by Landlock.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE = 1 << 14
_RIGHTS_BY_VERSION = ((1, (1 << 13) - 1), (2, 1 << 13), (3, _TRUNCATE), (5, 1 << 15))
_TCP = 0b11
_SCOPES = 0b11  # abstract UNIX sockets and signals

READ = _READ_FILE | _READ_DIR
LIST = _READ_DIR
DEVICE = _READ_FILE | _WRITE_FILE
# All but running programs, devices and sockets with a path.
WORK = ((1 << 15) - 1) & ~(_EXECUTE | 1 << 6 | 1 << 9 | 1 << 11)

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The kernel's Landlock version; 0 where there is none or it is switched off."""
    found: int = _libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)
    return max(0, found)


def restrict(allowed: Sequence[tuple[int, int]]) -> None:
    """Leaves the process `allowed`: pairs of an open file or folder and the rights beneath it.

    TCP is refused from version 4 on; signals to others and abstract sockets from version 6 on.
    `no_new_privs` must be set.

    Raises:
        OSError: when the kernel refuses a rule.
    """
    kernel = version()
    handled = sum(rights for since, rights in _RIGHTS_BY_VERSION if kernel >= since)
    attributes = struct.pack(
        "QQQ"[: 1 if kernel < 4 else 2 if kernel < 6 else 3],
        *(handled, _TCP, _SCOPES)[: 1 if kernel < 4 else 2 if kernel < 6 else 3],
    )
    ruleset = _call(_CREATE, attributes, len(attributes), 0)
    try:
        for file, rights in allowed:
            rule = struct.pack("=Qi", rights & handled, file)
            _call(_ADD, ruleset, 1, rule, 0)
        _call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _call(number: int, *arguments: int | bytes) -> int:
    typed = [
        ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_long(argument)
        for argument in arguments
    ]
    result: int = _libc.syscall(ctypes.c_long(number), *typed)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"landlock call {number}: {os.strerror(error)}")
    return result

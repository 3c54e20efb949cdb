"""Put in front of each hostile program; an attempt that goes through prints ESCAPED."""

from __future__ import annotations

import ctypes
import os
import platform
import signal  # noqa: F401  (for the programs)
import socket  # noqa: F401
import struct  # noqa: F401
import sys  # noqa: F401
from collections.abc import Callable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
found: list[str] = []

_NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "capset": (126, 91),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "futex": (202, 98),
    "futimesat": (261, None),
    "init_module": (175, 105),
    "inotify_init1": (294, 26),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mincore": (27, 232),
    "mlock": (149, 228),
    "mlockall": (151, 230),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "preadv2": (327, 286),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "reboot": (169, 142),
    "remap_file_pages": (216, 234),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "seccomp": (317, 277),
    "semget": (64, 190),
    "setfsuid": (122, 151),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "timer_create": (222, 107),
    "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
}


def escaped(what: str) -> None:
    """Reports an attempt that went through."""
    found.append(what)
    print("ESCAPED", what, flush=True)


def tries(action: Callable[..., object], *arguments: Any, **named: Any) -> None:
    """Reports `action` as escaped unless it fails."""
    try:
        action(*arguments, **named)
    except BaseException as error:
        print("held:", type(error).__name__, str(error)[:80])
    else:
        escaped(f"{getattr(action, '__name__', action)} {arguments}"[:200])


def raw(number: int, *arguments: int | bytes) -> int:
    """Makes a system call by number; fails as the call does."""
    typed = [
        ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value)
        for value in arguments
    ]
    result: int = libc.syscall(ctypes.c_long(number), *typed)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def syscall(name: str, *arguments: Any) -> int:
    """Makes a system call by name; fails as the call does."""
    number = _NUMBERS[name][0 if platform.machine() == "x86_64" else 1]
    if number is None:
        raise OSError("this architecture has no such call")
    return raw(number, *arguments)


def prctl(option: int, value: int) -> None:
    """Calls prctl; fails as the call does."""
    rest = [ctypes.c_ulong(number) for number in (value, 0, 0, 0)]
    if libc.prctl(option, *rest) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

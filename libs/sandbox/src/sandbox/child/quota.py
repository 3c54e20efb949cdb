"""A file system of limited size for each snippet, where the kernel lets us mount one.

The waiting interpreter enters a mount namespace of its own: as root, or as anybody through a user
namespace in which all ids stay what they are. There each supervisor mounts a tmpfs (tmpfs(5))
whose `size` and `nr_inodes` hold whatever a snippet writes, hides, deletes and keeps open or
mapped. It is memory, and gone with the last process that has it.
"""

from __future__ import annotations

import ctypes
import os

_NEW_NAMESPACE, _NEW_USER = 0x00020000, 0x10000000
_NO_SET_USER, _NO_DEVICES, _RECURSIVE, _PRIVATE = 2, 4, 1 << 14, 1 << 18
_DETACH = 2
_SETGID, _SETUID = 6, 7

_libc = ctypes.CDLL(None, use_errno=True)


def enter(folder: str) -> bool:
    """Enters a mount namespace in which `mount` works on what is in `folder`.

    The process must have one thread.

    Returns:
        Whether there is such a namespace; without, nothing has changed.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _enter_mount_namespace()
            mount(folder, None, size=1 << 20, entries=1)
            unmount(folder)
            code = 0
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        return False
    _enter_mount_namespace()
    return True


def mount(folder: str, user: int | None, *, size: int, entries: int) -> None:
    """Mounts an empty file system over `folder`.

    Args:
        folder: Absolute path.
        user: User and group id that own it, or None for those of this process.
        size: Bytes that it may hold.
        entries: Files, folders and links that it may hold.

    Raises:
        OSError: when the kernel refuses.
    """
    owner, group = (os.geteuid(), os.getegid()) if user is None else (user, user)
    # The root of the file system is one of its inodes.
    limits = f"size={size},nr_inodes={entries + 1}"
    options = f"{limits},mode=0700,uid={owner},gid={group}"
    flags = ctypes.c_ulong(_NO_SET_USER | _NO_DEVICES)
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options.encode())


def unmount(folder: str) -> None:
    """Takes away what `mount` put over `folder`, even if it is still in use.

    Raises:
        OSError: when the kernel refuses.
    """
    _call("umount2", os.fsencode(folder), _DETACH)


def _enter_mount_namespace() -> None:
    """Enters a mount namespace; what is mounted there shows nowhere else."""
    try:
        _call("unshare", _NEW_NAMESPACE)
    except PermissionError:
        _enter_user_namespace()
    _call("mount", b"none", b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None)


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    if _may_map_others():
        _unshare_with_all_ids()
        return
    _call("unshare", _NEW_USER | _NEW_NAMESPACE)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def _unshare_with_all_ids() -> None:
    """Only a process that stayed outside may map more ids than its own (user_namespaces(7))."""
    process = os.getpid()
    maps = {name: _identity_map(f"/proc/self/{name}") for name in ("uid_map", "gid_map")}
    reader, writer = os.pipe()
    helper = os.fork()
    if helper == 0:
        code = 1
        try:
            os.close(writer)
            os.read(reader, 1)
            for name, rows in maps.items():
                _write(f"/proc/{process}/{name}", rows)
            code = 0
        finally:
            os._exit(code)
    os.close(reader)
    try:
        _call("unshare", _NEW_USER | _NEW_NAMESPACE)
    finally:
        os.close(writer)
        status = os.waitpid(helper, 0)[1]
    if status != 0:
        raise OSError("the ids of a user namespace could not be mapped")


def _identity_map(path: str) -> str:
    """The ids of this user namespace, each mapped to itself."""
    with open(path, encoding="ascii") as file:
        rows = [line.split() for line in file]
    return "".join(f"{first} {first} {count}\n" for first, _, count in rows)


def _may_map_others() -> bool:
    with open("/proc/self/status", encoding="ascii") as status:
        mask = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff"))
    return bool(mask >> _SETUID & mask >> _SETGID & 1)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")

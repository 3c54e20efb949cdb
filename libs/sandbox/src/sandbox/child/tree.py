"""The working folder of a snippet: how full it is, and its removal whatever was built in it.

How full it is has to be asked only where no file system of its own holds the folder.
"""

from __future__ import annotations

import os
import stat

DEEPEST = 32
MOST_ENTRIES = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class _Overfull(Exception):
    pass


def overfull(root: int, limit: int) -> str | None:
    """What is too much beneath the open folder `root`, or None.

    Bounded work: `DEEPEST` levels and `MOST_ENTRIES` entries are limits as well. What has no name
    any more is not found. A folder that keeps its owner out is opened to it.

    Args:
        root: Descriptor of the folder.
        limit: Bytes on disk that all files together may take.
    """
    try:
        _measure(root, 0, 0, 0, limit)
    except _Overfull as found:
        return str(found)
    return None


def _measure(folder: int, depth: int, entries: int, total: int, limit: int) -> tuple[int, int]:
    if depth > DEEPEST:
        raise _Overfull(f"folders deeper than {DEEPEST}")
    for name in os.listdir(folder):
        entries += 1
        if entries > MOST_ENTRIES:
            raise _Overfull(f"more than {MOST_ENTRIES} files")
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            inner = _look_into(name, folder) if stat.S_ISDIR(found.st_mode) else None
        except PermissionError:
            raise _Overfull("a folder that can't be looked into") from None
        except OSError:
            continue  # deleted or replaced meanwhile
        total += found.st_blocks * 512
        if total > limit:
            raise _Overfull(f"more than {limit} bytes on disk")
        if inner is not None:
            try:
                entries, total = _measure(inner, depth + 1, entries, total, limit)
            finally:
                os.close(inner)
    return entries, total


def _look_into(name: str, folder: int) -> int:
    """Opens the folder `name`, whatever its mode.

    By a handle: another file could stand in its place by the time its mode is changed.
    """
    handle = os.open(name, _FOLDER | os.O_PATH, dir_fd=folder)
    try:
        path = f"/proc/self/fd/{handle}"
        if not os.access(path, os.R_OK | os.X_OK):
            os.chmod(path, 0o700)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(handle)


def remove(path: str) -> None:
    """Deletes the folder `path` and all beneath it, in which nobody works any more.

    Nothing happens where it does not exist.

    Folders are first moved up to the top, so that neither depth nor path length matters.

    Raises:
        OSError: when something can't be deleted.
    """
    above, name = os.path.split(path)
    folder = os.open(above, os.O_PATH)
    try:
        root = _open(name, folder)
    except FileNotFoundError:
        return
    finally:
        os.close(folder)
    try:
        os.fchmod(root, 0o700)
        moved = 0
        while names := os.listdir(root):
            for name in names:
                if not _unlinked(name, root):
                    moved = _lift(name, root, moved)
    finally:
        os.close(root)
    os.rmdir(path)


def _lift(name: str, root: int, moved: int) -> int:
    """Empties the folder `name` of `root` into `root` and deletes it; returns the next number."""
    folder = _open(name, root)
    try:
        os.fchmod(folder, 0o700)
        for inner in os.listdir(folder):
            if not _unlinked(inner, folder):
                os.chmod(inner, 0o700, dir_fd=folder)
                while _exists(f"moved-{moved}", root):
                    moved += 1
                os.rename(inner, f"moved-{moved}", src_dir_fd=folder, dst_dir_fd=root)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=root)
    return moved


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _unlinked(name: str, folder: int) -> bool:
    """Deletes `name` unless it is a folder; says whether it is gone."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True


def _open(name: str, folder: int) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder)
        return os.open(name, _FOLDER, dir_fd=folder)

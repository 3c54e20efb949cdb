"""One process a run folder."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnwise.config import ConfigError
from turnwise.run.disk import making

NAME = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder for the block; the lock of a process that died is free by itself.

    Raises:
        ConfigError: another process holds it; says which.
        PreflightError: the disk can't hold it.
    """
    path = folder / NAME
    with making("--run-dir"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode("utf-8", "replace").strip()
            raise ConfigError(
                f"--run-dir {folder}: another process is at work in it: {holder}; wait for it, or"
                " name another folder"
            ) from None
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = f"process {os.getpid()} on {socket.gethostname()} since {since}\n"
        with making(f"--run-dir {path}"):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        os.close(descriptor)

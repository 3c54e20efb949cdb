"""What a run is doing, told from its files alone and without touching them."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from typing import Literal

from turnwise.run.folder import RunFolder
from turnwise.run.lock import NAME
from turnwise.run.status import NAME as STATUS

State = Literal["finished", "running", "silent", "stopped"]
LOCKS = Path("/proc/locks")
QUIET_S = 120.0
"""A run that has no longer step than a third of this is silent after it."""


def run_state(folder: RunFolder, longest_s: float, now: float | None = None) -> State:
    """What the run is doing.

    `running`: a process of this machine holds its lock, or it wrote not long ago. `stopped`: its
    process has ended on this machine and left no summary. `silent`: no summary, nothing written for
    long, and its process can't be seen from here.

    Args:
        longest_s: Seconds of its longest step or evaluation.
        now: Seconds since 1970; None is the clock's.
    """
    if folder.summary.exists():
        return "finished"
    if _held(folder.path / NAME):
        return "running"
    if _ended_here(folder.path / NAME):
        return "stopped"
    now = time.time() if now is None else now
    quiet = now - written_at(folder) > max(QUIET_S, 3 * longest_s)
    return "silent" if quiet else "running"


def written_at(folder: RunFolder) -> float:
    """When one of the run's files was written last, in seconds since 1970."""
    times = [0.0]
    status = folder.path / STATUS
    for path in (folder.config, folder.metrics, folder.episodes, folder.summary, status):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times)


def _held(lock: Path) -> bool:
    """Whether a process of this machine holds the lock; asking for it could disturb a start."""
    try:
        inode = lock.stat().st_ino
        held = LOCKS.read_text()
    except OSError:
        return False
    return re.search(rf"FLOCK .*:{inode} ", held) is not None


def _ended_here(lock: Path) -> bool:
    """Whether the lock names a process of this machine; call it where nobody holds the lock."""
    try:
        text = lock.read_text(errors="replace")
    except OSError:
        return False
    return f" on {socket.gethostname()} " in text

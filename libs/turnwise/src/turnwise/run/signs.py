"""Signs of life of a run's other processes: a small file each, in `signs/` of the run folder."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from turnwise.run.status import LifeSign

FOLDER = "signs"
MAX_SIGNS = 64
"""Those seen the longest ago are listed first: they are the ones to look at."""


class Sign(msgspec.Struct, frozen=True):
    """`at` in seconds since 1970, by the clock of the machine that wrote it."""

    name: str
    at: float
    said: str


def leave_sign(run_dir: Path, role: str, said: str) -> None:
    """Says that this process lives; nothing where the disk does not take it."""
    name = f"{role} {os.getpid()} on {socket.gethostname()}"
    folder = run_dir / FOLDER
    path = folder / f"{role}-{socket.gethostname()}-{os.getpid()}.json"
    part = path.with_suffix(".partial")
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        part.write_bytes(msgspec.json.encode(Sign(name, time.time(), said)))
        part.replace(path)


def read_signs(run_dir: Path) -> list[LifeSign]:
    """The signs that are there, the oldest first, and when each log was written last.

    Those of ended processes stay in the folder.
    """
    found = []
    for path in (run_dir / FOLDER).glob("*.json"):
        with suppress(OSError, msgspec.MsgspecError):
            found.append(msgspec.json.decode(path.read_bytes(), type=Sign))
    found.sort(key=lambda one: one.at)
    now = time.time()
    logs = []
    for path in sorted((run_dir / "logs").glob("*.log")):
        with suppress(OSError):
            logs.append(LifeSign(f"last line of {path.name}", max(0.0, now - path.stat().st_mtime)))
    signs = [LifeSign(one.name, max(0.0, now - one.at), one.said) for one in found[:MAX_SIGNS]]
    return [*logs, *signs]

"""Processes by pid and start time, so that a number that was given out again is never signalled.

Linux only, as are the clusters. Nothing here looks at a process's name.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
from pydantic import Field

from turnwise.config import Config

_PROC = Path("/proc")
POLL_S = 0.05
# Children of a leader that has ended need a moment to see it.
LINGER_S = 2.0


class Process(Config):
    """A process that cannot be mistaken for a later one."""

    pid: int = Field(ge=2)
    """Its number."""
    started: int = Field(ge=0)
    """Start time in clock ticks since the machine was booted: field 22 of /proc/PID/stat. psutil
    tells it as a time of day, which moves when the clock is set."""
    boot: str
    """The machine's boot, /proc/sys/kernel/random/boot_id: numbers mean nothing beyond it."""


def boot_id() -> str:
    """Which boot of which machine this is."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Process | None:
    """The process of that number now, or None; a zombie counts as gone."""
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return None
        # The name before the fields may hold brackets and spaces.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (psutil.Error, OSError, ValueError):
        return None
    return Process(pid=pid, started=int(fields[19]), boot=boot_id())


def is_alive(process: Process) -> bool:
    """Whether this very process still runs."""
    return identify(process.pid) == process


def command_line(process: Process) -> tuple[str, ...]:
    """What this very process was started with; nothing if it is gone."""
    try:
        words = tuple(psutil.Process(process.pid).cmdline())
    except (psutil.Error, ValueError):
        return ()
    return words if is_alive(process) else ()


def family(leader: Process) -> list[Process]:
    """The process, its descendants, and whoever is in a session that it leads."""
    parents = {one.pid: one.info["ppid"] for one in psutil.process_iter(["ppid"])}
    members = {leader.pid} if is_alive(leader) else set[int]()
    members |= {pid for pid in parents if _session(pid) == leader.pid}
    grown = True
    while grown:
        found = {pid for pid, parent in parents.items() if parent in members} - members
        members |= found
        grown = bool(found)
    return [one for pid in sorted(members) if (one := identify(pid)) is not None]


def end_family(leader: Process, grace_s: float) -> list[Process]:
    """Ends a process that leads a session, with all that it started.

    SIGTERM goes to the leader, which knows how to end its children; whoever is left after
    `grace_s` gets SIGKILL.

    Returns:
        Who had to be killed.
    """
    if leader.boot != boot_id():
        return []
    members = family(leader)
    send(leader, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while is_alive(leader) and time.monotonic() < until:
        time.sleep(POLL_S)
    known = {member.pid for member in members}
    members += [member for member in family(leader) if member.pid not in known]
    if not is_alive(leader):
        wait_gone(members, LINGER_S)
    killed = [member for member in members if send(member, signal.SIGKILL)]
    wait_gone(killed, 5.0)
    return killed


def send(process: Process, number: signal.Signals) -> bool:
    """Signals this very process; False if it is gone or not ours."""
    if not is_alive(process):
        return False
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def wait_gone(processes: Iterable[Process], limit_s: float) -> bool:
    """Waits until none of them runs; False if one still does after `limit_s`."""
    waiting = list(processes)
    until = time.monotonic() + limit_s
    while waiting := [one for one in waiting if is_alive(one)]:
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None

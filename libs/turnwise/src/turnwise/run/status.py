"""What a run does at the moment: `status.json`, as `turnwise.run.watching` writes it.

It is written whole or not at all, into the run folder, and looks the same on both backends.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import msgspec

from turnwise.config import ConfigError
from turnwise.run.disk import reading

NAME = "status.json"
STACKS = "stacks.txt"
QUIET_S = 60.0
"""A status that is older is of a process that has ended, or can't write."""

State = Literal["running", "paused", "ended"]


class WaitStatus(msgspec.Struct, frozen=True):
    """What is waited for, and for how many seconds: `engine`, `user`, `turn 3`, `limiter`, ..."""

    what: str
    seconds: float


class EpisodeStatus(msgspec.Struct, frozen=True):
    """An episode under way; its waits begin with the outermost. Without one its own code runs."""

    rollout: str
    group: str
    task: str
    seconds: float
    waits: list[WaitStatus]


class WaitCount(msgspec.Struct, frozen=True):
    """How many episodes wait for the same, and the longest of these waits in seconds."""

    what: str
    episodes: int
    longest_s: float


class GroupStatus(msgspec.Struct, frozen=True):
    """A group with episodes under way, and the seconds of its oldest."""

    group: str
    task: str
    episodes: int
    seconds: float


class ErrorStatus(msgspec.Struct, frozen=True):
    """The last error at a boundary, how many there were, and how long ago the last was."""

    boundary: str
    error: str
    count: int
    ago_s: float


class ServiceStatus(msgspec.Struct, frozen=True):
    """The queue before an endpoint: requests under way and waiting, how many may be under way, how
    often it said that it is asked too fast; what it has cost and may cost, in US dollars."""

    name: str
    running: int
    waiting: int
    concurrency: int
    rejections: int
    usd: float | None = None
    cap_usd: float | None = None


class LifeSign(msgspec.Struct, frozen=True):
    """When something else of the run was last seen: an engine, a boundary, a worker."""

    name: str
    ago_s: float
    said: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`status.json`. Durations are as of `at`, which is in seconds since 1970.

    `step` is the training steps done, `stage` what is done now and for how long. `quiet_s` is how
    long no episode has ended while some were under way, `median_s` what one takes, `stalled` says
    in words that this is a stall. `loop_s` is how long the event loop has not taken its turn.
    """

    at: float
    backend: str
    process: str
    state: State
    step: int
    stage: str
    stage_s: float
    in_flight: int
    settled: int
    quiet_s: float
    median_s: float | None
    stalled: str
    loop_s: float
    episodes: list[EpisodeStatus]
    waits: list[WaitCount]
    groups: list[GroupStatus]
    errors: list[ErrorStatus]
    services: list[ServiceStatus]
    signs: list[LifeSign]


def read_status(run_dir: Path) -> Status | None:
    """The status of a run, or None if it has never written one.

    Raises:
        ConfigError: the file is none.
    """
    path = run_dir / NAME
    if not path.is_file():
        return None
    with reading(path):
        content = path.read_bytes()
    try:
        return msgspec.json.decode(content, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no status of a run: {error}") from None


def is_alive(status: Status, now: float | None = None) -> bool:
    """Whether the process that wrote the status still does; `now` is the clock's where None."""
    now = time.time() if now is None else now
    return status.state != "ended" and now - status.at < QUIET_S


def is_paused(run_dir: Path) -> bool:
    """Whether a process lives there and stands still because somebody asked it to."""
    try:
        status = read_status(run_dir)
    except ConfigError:
        return False
    return status is not None and status.state == "paused" and is_alive(status)

"""Writes `status.json` every few seconds, from a thread of its own.

The thread goes on while the event loop hangs or a step of the optimiser computes, so that the file
says which of them it is. It takes requests as well, and notices a stall.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from types import TracebackType

import msgspec

from turnwise.command import RunError
from turnwise.config import ConfigError
from turnwise.inflight import REGISTRY, InFlight, Registry
from turnwise.run.stacks import stacks
from turnwise.run.status import (
    NAME,
    STACKS,
    EpisodeStatus,
    ErrorStatus,
    GroupStatus,
    LifeSign,
    ServiceStatus,
    State,
    Status,
    WaitCount,
    WaitStatus,
)

EVERY_S = 2.0
"""Seconds between two looks at requests and two writings of the file."""
STALL_TIMES = 10.0
"""Times the median time of an episode without any that ends are a stall, ..."""
MIN_STALL_S = 60.0
"""... and no shorter time is one: a long prompt or a slow user is none."""
KNOWN_EPISODES = 8
"""Episodes whose times must be known before one can be late."""
MAX_LISTED = 64
"""Episodes that are listed one by one, the oldest first; all are counted."""
MAX_GROUPS = 10
MAX_ERROR = 500
"""Characters of an error."""

logger = logging.getLogger(__name__)


class StatusWriter:
    """Writes the status of a run for the block, from a thread.

    Attributes:
        step: Training steps done.
        state: Shown as it is; `ended` after the block.
        clock: The registry's, in seconds.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        backend: str,
        look: Callable[[], None] = lambda: None,
        on_stall: Callable[[str, float, bool], None] = lambda text, seconds, over: None,
        sampled: Callable[[], float] | None = None,
        signs: Callable[[], Sequence[LifeSign]] = tuple,
        registry: Registry = REGISTRY,
    ) -> None:
        """Belongs to the event loop that runs, if any.

        Args:
            run_dir: Where the file goes.
            backend: `local`, `slime`, or `evaluation`, which takes no requests.
            look: Called every `EVERY_S` in the thread: takes requests.
            on_stall: Told once of a stall in words, with its seconds, and once that it is over.
            sampled: Tokens that the engine has sampled so far: tells a policy's long turn from an
                engine that does nothing.
            signs: Further signs of life.
        """
        self.step = 0
        self.state: State = "running"
        self._path, self._backend, self._registry = run_dir, backend, registry
        self._look, self._on_stall, self._signs = look, on_stall, signs
        self._sampled, self._sampled_before = sampled, -1.0
        self.clock = registry.clock
        self._sampled_at = self._stage_since = self._loop_at = self.clock()
        self._stage = "starting"
        self._stalled_since: float | None = None
        self._asked_loop = False
        self._loop: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def __enter__(self) -> StatusWriter:
        self._registry.clear()
        self.tick()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        try:
            self._thread.join()
        finally:
            # An interrupt while it waits leaves no run that seems to go on.
            self.state = "ended"
            self.stage("ended")
            self._write()

    def stage(self, text: str) -> None:
        """Says what is done from now on."""
        self._stage, self._stage_since = text, self.clock()

    def tick(self) -> None:
        """One look: requests, the event loop, a stall; then the file."""
        self._look()
        self._ask_loop()
        self._watch()
        self._write()

    def now(self) -> Status:
        """What the file says."""
        registry, now = self._registry, self.clock()
        entries, times = registry.entries(), registry.times()
        return Status(
            at=time.time(),
            backend=self._backend,
            process=f"process {os.getpid()} on {socket.gethostname()}",
            state=self.state,
            step=self.step,
            stage=self._stage,
            stage_s=now - self._stage_since,
            in_flight=len(entries),
            settled=registry.settled,
            quiet_s=self._quiet_s(entries, now),
            median_s=median(times) if times else None,
            stalled=self._stall(entries, times, now),
            loop_s=now - self._loop_at if self._asked_loop else 0.0,
            episodes=[_episode(entry, now) for entry in entries[:MAX_LISTED]],
            waits=_wait_counts(entries, now),
            groups=_groups(entries, now),
            errors=self._errors(now),
            services=self._services(),
            signs=self._all_signs(now),
        )

    def dump_stacks(self) -> Path:
        """Writes the stacks of all tasks and threads, and returns the file."""
        loops = [entry.task.get_loop() for entry in self._registry.entries() if entry.task]
        own = [self._loop] if self._loop is not None else []
        path = self._path / STACKS
        _replace(path, stacks(dict.fromkeys([*own, *loops])).encode("utf-8", "replace"))
        return path

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                self.tick()
            except (ConfigError, RunError) as error:
                logger.warning("%s", error)

    def _write(self) -> None:
        # A full disk ends a run where it writes what counts, not here.
        with suppress(OSError):
            _replace(self._path / NAME, msgspec.json.encode(self.now()))

    def _ask_loop(self) -> None:
        if self._loop is not None and not self._asked_loop and not self._loop.is_closed():
            self._asked_loop, self._loop_at = True, self.clock()
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop_answers)

    def _loop_answers(self) -> None:
        self._asked_loop = False

    def _watch(self) -> None:
        now, entries = self.clock(), self._registry.entries()
        text = self._stall(entries, self._registry.times(), now)
        if text and self._stalled_since is None:
            self._stalled_since = now - self._quiet_s(entries, now)
            self._on_stall(text, now - self._stalled_since, False)
        elif not text and self._stalled_since is not None:
            seconds, self._stalled_since = now - self._stalled_since, None
            self._on_stall("episodes end again", seconds, True)

    def _quiet_s(self, entries: Sequence[InFlight], now: float) -> float:
        if not entries:
            return 0.0
        return now - max(self._registry.last_settled, self._registry.busy_since)

    def _stall(self, entries: Sequence[InFlight], times: Sequence[float], now: float) -> str:
        quiet = self._quiet_s(entries, now)
        if len(times) < KNOWN_EPISODES or quiet <= max(MIN_STALL_S, STALL_TIMES * median(times)):
            return ""
        waits = ", ".join(f"{one.what} {one.episodes}" for one in _wait_counts(entries, now))
        return (
            f"no episode has ended for {quiet:.0f} s, where one takes {median(times):.1f} s;"
            f" {len(entries)} are under way and wait for: {waits}"
        )

    def _errors(self, now: float) -> list[ErrorStatus]:
        return [
            ErrorStatus(boundary, error.text[:MAX_ERROR], error.count, now - error.at)
            for boundary, error in list(self._registry.errors.items())
        ]

    def _services(self) -> list[ServiceStatus]:
        return [
            ServiceStatus(
                name=one.name,
                running=one.limiter.running,
                waiting=one.limiter.waiting,
                concurrency=one.limiter.concurrency,
                rejections=one.limiter.rejections,
                usd=None if one.spend is None else one.spend.usd,
                cap_usd=None if one.spend is None else one.spend.cap_usd,
            )
            for one in self._registry.services()
        ]

    def _all_signs(self, now: float) -> list[LifeSign]:
        found = [
            LifeSign(f"last answer: {boundary}", now - at)
            for boundary, at in list(self._registry.answered.items())
        ]
        if self._sampled is not None:
            count = self._sampled()
            if count != self._sampled_before:
                self._sampled_before, self._sampled_at = count, now
            found.append(LifeSign("engine's last token", now - self._sampled_at))
        return [*found, *self._signs()]


def _replace(path: Path, content: bytes) -> None:
    """Whole or not at all; what a loss of power takes of it is out of date anyway."""
    part = path.with_name(f".{path.name}.partial")
    part.write_bytes(content)
    part.replace(path)


def _episode(entry: InFlight, now: float) -> EpisodeStatus:
    return EpisodeStatus(
        rollout=entry.rollout_id,
        group=entry.group_id,
        task=entry.task_id,
        seconds=now - entry.since,
        waits=[WaitStatus(wait.what, now - wait.since) for wait in list(entry.waits)],
    )


def _innermost(entry: InFlight, now: float) -> tuple[str, float]:
    """What an episode waits for in the end: its own code where it waits for nothing."""
    waits = list(entry.waits)
    return (waits[-1].what, now - waits[-1].since) if waits else ("own code", now - entry.since)


def _wait_counts(entries: Sequence[InFlight], now: float) -> list[WaitCount]:
    found: dict[str, list[float]] = {}
    for entry in entries:
        what, seconds = _innermost(entry, now)
        found.setdefault(what, []).append(seconds)
    counts = [WaitCount(what, len(all_s), max(all_s)) for what, all_s in found.items()]
    return sorted(counts, key=lambda one: -one.episodes)


def _groups(entries: Sequence[InFlight], now: float) -> list[GroupStatus]:
    found: dict[str, list[InFlight]] = {}
    for entry in entries:
        found.setdefault(entry.group_id, []).append(entry)
    groups = [
        GroupStatus(name, members[0].task_id, len(members), now - members[0].since)
        for name, members in found.items()
    ]
    return sorted(groups, key=lambda one: -one.seconds)[:MAX_GROUPS]

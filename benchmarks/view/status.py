"""Measures what it costs a run to say what its episodes wait for.

    python -m benchmarks.view.status

Plays rounds of episodes against an engine that answers at once, so that nothing hides the cost, by
turns with and without the notes of waits and the thread of the status file, and compares CPU time:
of pairs, and the least of each, which other work on the machine disturbs least. What the waits and
the thread take by themselves is told beside it.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import turnwise.conversation
import turnwise.episode
from turnwise.conversation import Conversation
from turnwise.episode import Boundary, Ending, crossing
from turnwise.inflight import playing, waiting
from turnwise.rollout import Rollout
from turnwise.run.watching import EVERY_S, StatusWriter
from turnwise.testing import ScriptedEngine, byte_policy, say

ROUNDS = 15
WAVES = 20
EPISODES = 64
TURNS = 4
CROSSINGS = 20_000


def nothing(what: str) -> Any:
    """In the place of `waiting`."""
    return nullcontext()


async def play_one(number: int) -> None:
    engine = ScriptedEngine([say("A word and another.") for _ in range(TURNS)])
    rollout = Rollout("task", "task", f"{number}", f"{number // 8}", seed=number)
    with playing(rollout.rollout_id, rollout.group_id, rollout.task_id):
        async with Conversation(byte_policy(engine), rollout) as talk:
            for _ in range(TURNS):
                await talk.ask([{"role": "user", "content": "Say something."}])
                async with crossing(Boundary.ENVIRONMENT):
                    await asyncio.sleep(0)
            talk.episode(Ending.finished(), 1.0)


async def play_all() -> None:
    # The status file is written every two seconds; a round shall be longer.
    for _ in range(WAVES):
        await asyncio.gather(*(play_one(number) for number in range(EPISODES)))


def cpu(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


class TimedWriter(StatusWriter):
    """Knows how often it looked, and the CPU time of that."""

    thread_s = 0.0
    looks = 0

    def tick(self) -> None:
        started = time.thread_time()
        super().tick()
        TimedWriter.thread_s += time.thread_time() - started
        TimedWriter.looks += 1


def with_status(folder: Path) -> float:
    async def run() -> None:
        with TimedWriter(folder, backend="local"):
            await play_all()

    return cpu(lambda: asyncio.run(run()))


def without() -> float:
    modules = (turnwise.episode, turnwise.conversation)
    for module in modules:
        module.waiting = nothing  # type: ignore[attr-defined]
    try:
        return cpu(lambda: asyncio.run(play_all()))
    finally:
        for module in modules:
            module.waiting = waiting  # type: ignore[attr-defined]


def seconds_a_wait() -> float:
    """The least of several tries."""
    found = []
    with playing("r", "g", "t"):
        for _ in range(20):
            started = time.process_time()
            for _ in range(CROSSINGS):
                with waiting("engine"):
                    pass
            found.append((time.process_time() - started) / CROSSINGS)
    return min(found)


def count_waits() -> int:
    """Waits of a round."""
    counted = 0

    def counting(what: str) -> Any:
        nonlocal counted
        counted += 1
        return waiting(what)

    modules = (turnwise.episode, turnwise.conversation)
    for module in modules:
        module.waiting = counting  # type: ignore[attr-defined]
    try:
        asyncio.run(play_all())
    finally:
        for module in modules:
            module.waiting = waiting  # type: ignore[attr-defined]
    return counted


def measure() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with_status(folder), without()
        TimedWriter.thread_s, TimedWriter.looks = 0.0, 0
        pairs = [(with_status(folder), without()) for _ in range(ROUNDS)]
        look = TimedWriter.thread_s / TimedWriter.looks
    ratios = sorted(a / b for a, b in pairs)
    quarter = len(ratios) // 4
    least = [min(times) for times in zip(*pairs, strict=True)]
    print(
        f"{WAVES * EPISODES} episodes of {TURNS} turns, {ROUNDS} pairs: CPU time with over without"
        f" {least[0] / least[1]:.3f} of the least, {statistics.median(ratios):.3f} of pairs"
        f" (quartiles {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}); {least[1]:.2f} s"
        " without"
    )
    waits, each = count_waits(), seconds_a_wait()
    print(
        f"{waits:,} waits of {1e6 * each:.2f} us are {waits * each / least[1]:.1%} of that; a look"
        f" takes {1e3 * look:.1f} ms, every {EVERY_S:g} s {look / EVERY_S:.2%} of a core"
    )


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    measure()

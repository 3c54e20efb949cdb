"""Measures what it costs a run to say what its episodes wait for.

    python -m benchmarks.view.status

Plays rounds of episodes against an engine that answers at once, so that nothing hides the cost, by
turns with and without the notes of waits and the thread of the status file, and compares CPU time.
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
from turnwise.run.watching import StatusWriter
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


def with_status(folder: Path) -> float:
    async def run() -> None:
        with StatusWriter(folder, backend="local"):
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


def microseconds_a_wait() -> float:
    with playing("r", "g", "t"):
        started = time.process_time()
        for _ in range(CROSSINGS):
            with waiting("engine"):
                pass
        return 1e6 * (time.process_time() - started) / CROSSINGS


def measure() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with_status(folder), without()
        pairs = [(with_status(folder), without()) for _ in range(ROUNDS)]
    ratios = sorted(a / b for a, b in pairs)
    quarter = len(ratios) // 4
    print(f"one wait noted: {microseconds_a_wait():.2f} us")
    print(
        f"{WAVES * EPISODES} episodes of {TURNS} turns, {ROUNDS} pairs: CPU time with over without"
        f" {statistics.median(ratios):.3f} (quartiles {ratios[quarter]:.3f} to"
        f" {ratios[-1 - quarter]:.3f}); {statistics.median(b for _, b in pairs):.2f} s"
        " without"
    )


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    measure()

"""What an episode waits for is known while it waits, and to nobody afterwards."""

from __future__ import annotations

import asyncio

import pytest
from turnwise.episode import Boundary, BoundaryError, crossing
from turnwise.inflight import REGISTRY, InFlight, playing, waiting
from turnwise.limiter import Limiter


def waits(entry: InFlight) -> list[str]:
    return [wait.what for wait in entry.waits]


async def test_waits_stand_in_order_and_go_when_they_end() -> None:
    with playing("r", "g", "t") as entry:
        assert REGISTRY.entries()[-1] is entry and entry.task is asyncio.current_task()
        async with crossing(Boundary.ENVIRONMENT):
            with waiting("turn 3"):
                assert waits(entry) == ["environment", "turn 3"]
            assert waits(entry) == ["environment"]
        assert waits(entry) == []
    assert entry not in REGISTRY.entries()


async def test_a_task_of_an_episode_waits_for_it() -> None:
    both = asyncio.Barrier(3)

    async def ask(what: Boundary) -> None:
        async with crossing(what):
            await both.wait()
            await both.wait()

    with playing("r", "g", "t") as entry:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(Boundary.USER))
            group.create_task(ask(Boundary.JUDGE))
            await both.wait()
            assert sorted(waits(entry)) == ["judge", "user"]
            await both.wait()
        assert waits(entry) == []


async def test_a_failure_leaves_no_wait() -> None:
    with playing("r", "g", "t") as entry:
        with pytest.raises(BoundaryError):
            async with crossing(Boundary.JUDGE):
                raise OSError("gone")
        assert waits(entry) == []


async def test_the_queue_of_a_limiter_is_a_wait_of_its_own() -> None:
    limiter = Limiter(concurrency=1)
    seen: list[list[str]] = []

    async def ask() -> None:
        with playing("r", "g", "t") as entry:
            async with crossing(Boundary.USER), limiter.slot():
                seen.append(waits(entry))

    async with limiter.slot():
        task = asyncio.create_task(ask())
        await asyncio.sleep(0)
        (entry,) = (one for one in REGISTRY.entries() if one.task is task)
        assert waits(entry) == ["user", "limiter"]
    await task
    assert seen == [["user"]]


async def test_outside_of_an_episode_nothing_is_noted() -> None:
    async with crossing(Boundary.ENGINE):
        assert not REGISTRY.entries()
    with waiting("anything"):
        assert not REGISTRY.entries()

"""The limiter, with a clock that jumps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turnwise.limiter import WINDOW_S, Limiter

from .virtual import run


async def send(
    limiter: Limiter, log: list[tuple[float, float]], *, tokens: float = 0, takes_s: float = 0
) -> None:
    async with limiter.slot(tokens) as slot:
        log.append((asyncio.get_running_loop().time(), tokens))
        await asyncio.sleep(takes_s)
        slot.succeeded(int(tokens))


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 60),
    requests=st.integers(1, 20),
    tokens=st.lists(st.integers(0, 50), min_size=60, max_size=60),
    per_minute=st.integers(50, 200),
    takes_s=st.floats(0, 30),
)
def test_no_minute_holds_more_than_the_limits(
    count: int, requests: int, tokens: list[int], per_minute: int, takes_s: float
) -> None:
    log: list[tuple[float, float]] = []

    async def main() -> None:
        limiter = Limiter(
            concurrency=1000, requests_per_minute=requests, tokens_per_minute=per_minute
        )
        each = [send(limiter, log, tokens=tokens[i], takes_s=takes_s) for i in range(count)]
        await asyncio.gather(*each)
        assert limiter.running == limiter.waiting == 0

    run(main())
    assert len(log) == count
    assert [amount for _, amount in log] == tokens[:count], "first come, first served"
    for start, _ in log:
        minute = [amount for time, amount in log if start <= time < start + WINDOW_S]
        assert len(minute) <= requests
        assert sum(minute) <= per_minute


def test_the_limit_is_used_up_before_anybody_waits() -> None:
    log: list[tuple[float, float]] = []

    async def main() -> None:
        limiter = Limiter(concurrency=100, requests_per_minute=5)
        await asyncio.gather(*(send(limiter, log) for _ in range(15)))

    run(main())
    times = [time for time, _ in log]
    assert times[:5] == [0.0] * 5
    assert times[5:10] == pytest.approx([60.0] * 5, abs=1e-3)
    assert times[10:] == pytest.approx([120.0] * 5, abs=1e-3)


def test_what_was_sent_counts_for_a_whole_minute() -> None:
    log: list[tuple[float, float]] = []

    async def main() -> None:
        limiter = Limiter(requests_per_minute=1)
        await send(limiter, log)
        await asyncio.sleep(59.5)
        await send(limiter, log)

    run(main())
    assert log[1][0] == pytest.approx(60.0, abs=1e-3)


def test_tokens_are_corrected_to_what_was_used() -> None:
    log: list[float] = []

    async def main() -> None:
        limiter = Limiter(tokens_per_minute=100)
        for used in (10, 10, 10):
            async with limiter.slot(80) as slot:
                log.append(asyncio.get_running_loop().time())
                slot.succeeded(used)

    run(main())
    assert log == pytest.approx([0.0, 0.0, 0.0])


def test_a_request_larger_than_the_limit_goes_alone_instead_of_never() -> None:
    log: list[tuple[float, float]] = []

    async def main() -> None:
        limiter = Limiter(tokens_per_minute=10)
        await asyncio.gather(*(send(limiter, log, tokens=50) for _ in range(2)))

    run(main())
    assert [time for time, _ in log] == pytest.approx([0.0, 60.0], abs=1e-3)


def test_concurrency_is_never_exceeded() -> None:
    most = 0

    async def main() -> None:
        nonlocal most
        limiter = Limiter(concurrency=4)

        async def one() -> None:
            nonlocal most
            async with limiter.slot():
                most = max(most, limiter.running)
                await asyncio.sleep(1)

        await asyncio.gather(*(one() for _ in range(50)))

    run(main())
    assert most == 4


def test_one_burst_of_429_halves_once_and_successes_recover() -> None:
    async def main() -> None:
        limiter = Limiter(concurrency=32)

        async def refused() -> None:
            async with limiter.slot() as slot:
                await asyncio.sleep(1)
                slot.rejected(None)

        await asyncio.gather(*(refused() for _ in range(32)))
        assert limiter.concurrency == 16
        assert limiter.rejections == 32
        await asyncio.gather(*(refused() for _ in range(16)))
        assert limiter.concurrency == 8
        log: list[tuple[float, float]] = []
        await asyncio.gather(*(send(limiter, log, takes_s=1) for _ in range(9)))
        assert limiter.concurrency == 9, "a round of successes adds one"
        for _ in range(600):
            await send(limiter, log)
        assert limiter.concurrency == 32, "up to what was given"

    run(main())


def test_concurrency_never_falls_to_nothing() -> None:
    async def main() -> None:
        limiter = Limiter(concurrency=2)
        for _ in range(10):
            async with limiter.slot() as slot:
                slot.rejected(None)
        assert limiter.concurrency == 1
        await send(limiter, [])

    run(main())


@pytest.mark.parametrize(("asked_s", "waited_s"), [(7.0, 7.0), (86400.0, 60.0), (0.0, 0.0)])
def test_retry_after_stops_everybody_for_a_minute_at_most(asked_s: float, waited_s: float) -> None:
    async def main() -> None:
        limiter = Limiter()
        async with limiter.slot() as slot:
            slot.rejected(asked_s)
        log: list[tuple[float, float]] = []
        await asyncio.gather(*(send(limiter, log) for _ in range(3)))
        assert [time for time, _ in log] == pytest.approx([waited_s] * 3)

    run(main())


def test_who_gives_up_waiting_leaves_no_gap() -> None:
    async def main() -> None:
        limiter = Limiter(concurrency=1, requests_per_minute=2)
        log: list[tuple[float, float]] = []
        holder = asyncio.create_task(send(limiter, log, takes_s=5))
        await asyncio.sleep(1)
        waiting = [asyncio.create_task(send(limiter, log)) for _ in range(3)]
        await asyncio.sleep(1)
        waiting[0].cancel()
        holder.cancel()
        results = await asyncio.gather(holder, *waiting, return_exceptions=True)
        assert [type(result) for result in results[:2]] == [asyncio.CancelledError] * 2
        assert results[2:] == [None, None]
        assert limiter.running == limiter.waiting == 0
        assert [time for time, _ in log] == pytest.approx([0.0, 2.0, 60.0], abs=1e-3)

    run(main())


def test_a_slot_granted_to_a_cancelled_request_is_given_back() -> None:
    async def main() -> None:
        limiter = Limiter(concurrency=1)
        async with limiter.slot():
            waiting = asyncio.create_task(send(limiter, []))
            await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert limiter.running == limiter.waiting == 0
        await send(limiter, [])

    run(main())


def test_a_limiter_outlives_its_event_loop() -> None:
    limiter = Limiter(concurrency=1)

    async def abandon() -> None:
        async with limiter.slot():
            waiting = asyncio.ensure_future(send(limiter, []))
            await asyncio.sleep(0)
            assert limiter.waiting == 1
            del waiting

    asyncio.run(abandon())
    assert limiter.running == limiter.waiting == 0
    asyncio.run(send(limiter, []))


@pytest.mark.parametrize("option", ["concurrency", "requests_per_minute", "tokens_per_minute"])
def test_a_limit_of_nothing_is_refused(option: str) -> None:
    options: dict[str, Any] = {option: 0}
    with pytest.raises(ValueError, match=option):
        Limiter(**options)

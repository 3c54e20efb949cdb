"""Many coroutines that go on at once hold the loop up by one piece of work."""

from __future__ import annotations

import asyncio

from turnwise.rounds import own_round, rounds_are_taken


async def test_one_goes_on_in_each_round_in_the_order_of_arrival() -> None:
    begin, order = asyncio.Event(), []
    rounds = 0

    async def piece(number: int) -> None:
        await begin.wait()
        await own_round()
        order.append((number, rounds))

    tasks = [asyncio.create_task(piece(number)) for number in range(20)]
    await asyncio.sleep(0)
    begin.set()
    while not all(task.done() for task in tasks):
        rounds += 1
        await asyncio.sleep(0)
    assert [number for number, _ in order] == list(range(20))
    assert len({at for _, at in order}) == 20
    await asyncio.sleep(0)
    assert not rounds_are_taken()


async def test_who_has_the_round_does_not_wait_for_another() -> None:
    await own_round()
    waiter = asyncio.create_task(own_round())
    await own_round()
    assert not waiter.done()
    await waiter


async def test_a_cancelled_waiter_holds_up_nobody() -> None:
    await own_round()
    waiting = [asyncio.create_task(own_round()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting[1:])

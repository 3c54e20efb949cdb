"""What waits together is searched together, within bounds, and fails alone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from apps.services.retrieval.batching import Batcher, QueueFull


class Search:
    """Holds each search until it is let go; doubles numbers, and fails for negative ones."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.let_go = asyncio.Semaphore(0)

    async def __call__(self, numbers: list[int]) -> Sequence[int | Exception]:
        self.batches.append(numbers)
        await self.let_go.acquire()
        if 0 in numbers:
            raise ValueError("all of them")
        return [2 * one if one > 0 else LookupError(str(one)) for one in numbers]


@asynccontextmanager
async def running(
    search: Search, *, max_queue: int = 8, max_batch: int = 4
) -> AsyncIterator[Batcher[int, int]]:
    batcher = Batcher[int, int](search, max_queue=max_queue, max_batch=max_batch)
    task = asyncio.create_task(batcher.run())
    try:
        yield batcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def submit(batcher: Batcher[int, int], *numbers: int) -> asyncio.Task[list[int]]:
    return asyncio.create_task(batcher.submit(numbers))


async def test_what_comes_during_a_search_is_the_next_one() -> None:
    search = Search()
    async with running(search) as batcher:
        tasks = [submit(batcher, 1)]
        await settle()
        tasks += [submit(batcher, number) for number in range(2, 8)]
        await settle()
        assert (search.batches, batcher.waiting) == ([[1]], 6)
        for _ in range(3):
            search.let_go.release()
        assert await asyncio.gather(*tasks) == [[2], [4], [6], [8], [10], [12], [14]]
        assert search.batches == [[1], [2, 3, 4, 5], [6, 7]]
        assert batcher.searches == 3


async def test_a_request_that_finds_no_room_is_refused_whole() -> None:
    search = Search()
    async with running(search, max_queue=2) as batcher:
        first = submit(batcher, 1)
        await settle()
        second = submit(batcher, 2)
        await settle()
        with pytest.raises(QueueFull, match="1 queries wait, 2 may"):
            await batcher.submit([3, 4])
        assert batcher.waiting == 1
        search.let_go.release()
        search.let_go.release()
        assert list(await asyncio.gather(first, second)) == [[2], [4]]


async def test_who_gives_up_makes_room_and_is_not_searched() -> None:
    search = Search()
    async with running(search, max_queue=3) as batcher:
        first = submit(batcher, 1)
        await settle()
        gone, stays = submit(batcher, 2, 3), submit(batcher, 4)
        await settle()
        gone.cancel()
        await settle()
        assert batcher.waiting == 1
        search.let_go.release()
        search.let_go.release()
        assert list(await asyncio.gather(first, stays)) == [[2], [8]]
        assert search.batches == [[1], [4]]


async def test_a_query_that_fails_costs_no_other() -> None:
    search = Search()
    async with running(search) as batcher:
        search.let_go.release()
        found = await asyncio.gather(
            *(submit(batcher, one) for one in (1, -2, 3)), return_exceptions=True
        )
        assert found[0] == [2] and found[2] == [6] and isinstance(found[1], LookupError)


async def test_a_search_that_raises_fails_its_batch_and_the_next_one_runs() -> None:
    search = Search()
    async with running(search) as batcher:
        search.let_go.release()
        for one in await asyncio.gather(
            *(submit(batcher, one) for one in (0, 1)), return_exceptions=True
        ):
            assert isinstance(one, ValueError)
        search.let_go.release()
        assert await batcher.submit([5]) == [10]

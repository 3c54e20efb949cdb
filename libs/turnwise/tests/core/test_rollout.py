"""Many episodes at once: order, bound, accounting."""

import asyncio

import pytest
from turnwise.episode import Boundary, BoundaryError, Ending, Episode
from turnwise.ledger import Ledger
from turnwise.rollout import Rollout, derive_seed, run_rollouts, waiting_s


def rollouts(count: int) -> list[Rollout[int]]:
    return [Rollout(index, f"t{index}", f"r{index}", "g", index) for index in range(count)]


def finished(rollout: Rollout[int]) -> Episode:
    return Episode(rollout.rollout_id, "g", "t", (), Ending.finished(), 1.0, [])


async def test_episodes_come_back_in_the_order_of_their_rollouts() -> None:
    async def run(rollout: Rollout[int]) -> Episode:
        await asyncio.sleep(0.001 * (5 - rollout.task))
        return finished(rollout)

    ledger = Ledger()
    episodes = await run_rollouts(rollouts(5), run, ledger=ledger, concurrency=5)
    assert [episode.rollout_id for episode in episodes] == [f"r{index}" for index in range(5)]
    ledger.check()


async def test_no_more_than_the_given_number_runs_at_a_time() -> None:
    running = peak = 0

    async def run(rollout: Rollout[int]) -> Episode:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return finished(rollout)

    await run_rollouts(rollouts(20), run, ledger=Ledger(), concurrency=3)
    assert peak == 3


async def test_the_longest_start_first_and_come_back_in_the_given_order() -> None:
    started = []

    async def run(rollout: Rollout[int]) -> Episode:
        started.append(rollout.task)
        return finished(rollout)

    given = rollouts(6)
    episodes = await run_rollouts(
        given, run, ledger=Ledger(), concurrency=1, work=lambda task: task % 3
    )
    assert started == [2, 5, 1, 4, 0, 3]
    assert [episode.rollout_id for episode in episodes] == [one.rollout_id for one in given]


def test_waiting_is_what_a_place_stood_empty_until_the_last_one_ended() -> None:
    assert waiting_s([1.0, 2.0, 3.0, 9.0], 2) == 3.0
    assert waiting_s([4.0, 9.0, 5.0], 8) == 3.0
    assert waiting_s([4.0], 1) == waiting_s([], 4) == 0.0


async def test_a_lost_episode_harms_no_other() -> None:
    async def run(rollout: Rollout[int]) -> Episode:
        if rollout.task == 1:
            error = BoundaryError(Boundary.USER, "429")
            return Episode(rollout.rollout_id, "g", "t", (), Ending.lost(error), None, [])
        return finished(rollout)

    ledger = Ledger()
    await run_rollouts(rollouts(3), run, ledger=ledger, concurrency=3)
    assert ledger.equation() == "3 started = 2 finished + 0 stopped + 1 lost (user 1) + 0 cancelled"


async def test_the_ledger_balances_after_cancellation_and_after_a_bug() -> None:
    async def hang(rollout: Rollout[int]) -> Episode:
        if rollout.task == 2:
            raise KeyError("bug")
        await asyncio.sleep(60)
        return finished(rollout)

    ledger = Ledger()
    with pytest.raises(KeyError):
        await run_rollouts(rollouts(4), hang, ledger=ledger, concurrency=4)
    ledger.check()
    assert ledger.as_dict()["cancelled"] == ledger.started


def test_seeds_depend_on_every_part_and_on_nothing_else() -> None:
    seeds = {derive_seed(run, step, name) for run in (1, 2) for step in (1, 2) for name in "ab"}
    assert len(seeds) == 8
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert derive_seed(7, "x") == derive_seed(7, "x")

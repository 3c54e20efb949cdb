"""Runs many episodes at once and accounts for each of them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from turnwise.episode import Ending, Episode
from turnwise.ledger import Ledger

if TYPE_CHECKING:
    from turnwise.replay import Replay

TaskT = TypeVar("TaskT")


@dataclass(frozen=True, slots=True)
class Rollout(Generic[TaskT]):
    """One episode to run.

    Attributes:
        task: What the method is given.
        task_id: The task's name, for people.
        rollout_id: Unique within the run.
        group_id: Shared by the rollouts that are compared with each other.
        seed: Non-negative, fixes everything random about the episode.
        replay: What an interrupted run of this episode has kept; None where none is kept.
    """

    task: TaskT
    task_id: str
    rollout_id: str
    group_id: str
    seed: int
    replay: Replay | None = None


RunEpisode = Callable[[Rollout[TaskT]], Awaitable[Episode]]


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) from what identifies a draw: equal parts, equal seed.

    The first 8 bytes of SHA-256 over the parts, so that no two streams of a run overlap as they
    would with `seed + index`.
    """
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


async def run_rollouts(
    rollouts: Sequence[Rollout[TaskT]],
    run_episode: RunEpisode[TaskT],
    *,
    ledger: Ledger,
    concurrency: int,
    on_episode: Callable[[Episode], None] | None = None,
    work: Callable[[TaskT], float] | None = None,
) -> list[Episode]:
    """Runs every rollout, at most `concurrency` at a time; returns episodes in the given order.

    Those whose tasks have the most `work` (`Method.work`) are started first, so that none of them
    is what all others wait for; else the given order holds.

    An episode whose task is cancelled by itself is cancelled alone.

    `run_episode` turns every failure it foresees into an ending. An exception from it is a bug:
    the other episodes are cancelled and the first one is raised. On cancellation episodes under
    way are entered as cancelled, so that the ledger balances whatever happened.
    """
    gate = asyncio.Semaphore(concurrency)
    episodes: list[Episode | None] = [None] * len(rollouts)

    async def run_one(index: int, rollout: Rollout[TaskT]) -> None:
        async with gate:
            ledger.start(rollout.rollout_id)
            try:
                episode = await run_episode(rollout)
            except BaseException:
                # Of one that alone is cancelled the group shall know.
                episodes[index] = cancelled = unplayed(rollout, Ending.cancelled())
                ledger.settle(cancelled)
                raise
            ledger.settle(episode)
            episodes[index] = episode
            if on_episode is not None:
                on_episode(episode)

    try:
        async with asyncio.TaskGroup() as group:
            for index, rollout in longest_first(list(enumerate(rollouts)), work):
                group.create_task(run_one(index, rollout), name=rollout.rollout_id)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [episode for episode in episodes if episode is not None]


def longest_first(
    rollouts: Sequence[tuple[int, Rollout[TaskT]]], work: Callable[[TaskT], float] | None
) -> list[tuple[int, Rollout[TaskT]]]:
    """Numbered rollouts by the work of their tasks, the most first; equal ones as given."""
    if work is None:
        return list(rollouts)
    return sorted(rollouts, key=lambda one: -work(one[1].task))


def waiting_s(ended: Sequence[float], concurrency: int) -> float:
    """How long a place for an episode stood empty, on average, until the last episode ended.

    Args:
        ended: When each episode did, in seconds of any clock.
        concurrency: Places. A place is taken again as long as episodes are left, so the last to end
            are those after which it stays empty.
    """
    last = sorted(ended)[-concurrency:]
    return max(last, default=0.0) - sum(last) / max(len(last), 1)


def unplayed(rollout: Rollout[TaskT], ending: Ending) -> Episode:
    """An episode of which nothing is known but how it ended."""
    return Episode(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        task_id=rollout.task_id,
        segments=(),
        ending=ending,
        score=None,
        transcript=(),
    )

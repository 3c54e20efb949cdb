"""Plays the trials of an evaluation that have no score yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from turnwise.episode import Episode
from turnwise.evaluation.journal import rollout_id
from turnwise.ledger import Ledger
from turnwise.rollout import Rollout, derive_seed, run_rollouts
from turnwise.rounds import in_thread
from turnwise.run.folder import RunFolder
from turnwise.run.traces import EVAL_TRACES, trace_row

TaskT = TypeVar("TaskT")

LONG_TOKENS = 10_000
"""A trace of more is written in a thread: token by token they take a second to decode where there
are a hundred thousand. Shorter ones are not, so that trials end in the same order in every run."""


def missing_rollouts(
    tasks: Mapping[str, TaskT],
    trials: int,
    *,
    seed: int,
    scored: Collection[tuple[str, int]],
    work: Callable[[TaskT], float] = lambda task: 0.0,
) -> list[Rollout[TaskT]]:
    """What is left to play: first trials of all tasks come first, so that an evaluation that ends
    early has some of every task; of these the longest, so that none is what the others wait for.

    Args:
        tasks: By name, which also names their seeds.
        trials: Of each task.
        seed: The evaluation's.
        scored: Trials that are not played again (`Journal.scored`).
        work: See `turnwise.method.Method`.
    """
    longest_first = sorted(tasks.items(), key=lambda item: -work(item[1]))
    return [
        Rollout(
            task=task,
            task_id=task_id,
            rollout_id=rollout_id(task_id, trial),
            group_id=task_id,
            seed=derive_seed(seed, "eval", task_id, trial),
        )
        for trial in range(trials)
        for task_id, task in longest_first
        if (task_id, trial) not in scored
    ]


async def play_trials(
    rollouts: Sequence[Rollout[TaskT]],
    play: Callable[[Rollout[TaskT]], Awaitable[Episode]],
    *,
    keep: Callable[[Episode], None],
    folder: RunFolder,
    tokenizer: Any,
    concurrency: int,
) -> None:
    """Plays every rollout; each is kept as it ends, whatever becomes of the others.

    Some episodes are kept whole in `episodes.jsonl`, before the row that counts them is written: a
    few spread over all rollouts, chosen before they are played so that an interrupted evaluation
    has its share, and the first of each ending that is not the policy's.

    Args:
        keep: Writes a finished trial to the journal.
        tokenizer: Turns tokens into text for the traces; None where none are known.

    Raises:
        Whatever `play` raises, after the episodes under way were cancelled.
    """
    stride = max(1, len(rollouts) // EVAL_TRACES)
    shown = {rollout.rollout_id for rollout in rollouts[::stride]}

    def write(episode: Episode, why: str) -> None:
        folder.append_episode(trace_row(episode, tokenizer, step=0, kind="eval", why=why))

    async def played(rollout: Rollout[TaskT]) -> Episode:
        episode = await play(rollout)
        why = "sample" if episode.ending.by_policy else episode.ending.label
        if episode.rollout_id in shown or why not in ("sample", *shown):
            shown.add(why)
            if sum(len(segment.ids) for segment in episode.segments) > LONG_TOKENS:
                # Whoever is cancelled meanwhile has ended: it is kept, and not played again.
                with suppress(asyncio.CancelledError):
                    await in_thread(partial(write, episode, why))
            else:
                write(episode, why)
        return episode

    await run_rollouts(rollouts, played, ledger=Ledger(), concurrency=concurrency, on_episode=keep)

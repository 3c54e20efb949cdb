"""What is left to play, and that each trial is kept as it ends."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from turnwise.episode import Boundary, BoundaryError, Ending, Episode
from turnwise.evaluation import rollouts
from turnwise.evaluation.rollouts import missing_rollouts, play_trials
from turnwise.rollout import Rollout
from turnwise.run.folder import RunFolder

TASKS = {"a": 1, "b": 2, "c": 3}


def test_first_trials_of_all_tasks_come_first_and_scored_ones_not_at_all() -> None:
    found = missing_rollouts(TASKS, 2, seed=7, scored={("b", 0)})
    assert [r.rollout_id for r in found] == ["a#0", "c#0", "a#1", "b#1", "c#1"]
    assert [r.task for r in found] == [1, 3, 1, 2, 3]
    assert len({r.seed for r in found}) == 5


def test_of_a_trial_the_longest_come_first() -> None:
    found = missing_rollouts(TASKS, 2, seed=7, scored=(), work=lambda task: task % 3)
    assert [r.rollout_id for r in found] == ["b#0", "a#0", "c#0", "b#1", "a#1", "c#1"]


def test_a_trials_seed_does_not_depend_on_what_else_is_missing() -> None:
    whole = {r.rollout_id: r.seed for r in missing_rollouts(TASKS, 2, seed=7, scored=())}
    rest = {r.rollout_id: r.seed for r in missing_rollouts(TASKS, 2, seed=7, scored={("a", 0)})}
    assert rest.items() <= whole.items()
    assert missing_rollouts(TASKS, 1, seed=8, scored=())[0].seed != whole["a#0"]


@pytest.mark.parametrize("long", [True, False])
async def test_long_traces_alone_are_written_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    folder, threads = RunFolder.create(tmp_path / "run", "eval", {}), list[bool]()
    append = RunFolder.append_episode

    def watched(self: RunFolder, row: Any) -> None:
        threads.append(threading.current_thread() is not threading.main_thread())
        append(self, row)

    monkeypatch.setattr(RunFolder, "append_episode", watched)
    monkeypatch.setattr(rollouts, "LONG_TOKENS", -1 if long else 0)

    async def play(rollout: Rollout[int]) -> Episode:
        ids = rollout.rollout_id, rollout.group_id, rollout.task_id
        return Episode(*ids, (), Ending.finished(), 1.0, [])

    left = missing_rollouts(TASKS, 1, seed=0, scored=())
    kept: list[Episode] = []
    await play_trials(left, play, keep=kept.append, folder=folder, tokenizer=None, concurrency=2)
    assert threads == [long] * 3 and len(kept) == 3


async def test_a_trial_whose_trace_is_written_is_kept_in_spite_of_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kept = RunFolder.create(tmp_path / "run", "eval", {}), list[str]()
    begun, goes_on = asyncio.Event(), threading.Event()
    loop, append = asyncio.get_running_loop(), RunFolder.append_episode

    def slow(self: RunFolder, row: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait()
        append(self, row)

    monkeypatch.setattr(RunFolder, "append_episode", slow)
    monkeypatch.setattr(rollouts, "LONG_TOKENS", -1)

    async def play(rollout: Rollout[int]) -> Episode:
        ids = rollout.rollout_id, rollout.group_id, rollout.task_id
        return Episode(*ids, (), Ending.finished(), 1.0, [])

    def keep(episode: Episode) -> None:
        kept.append(episode.rollout_id)

    left = missing_rollouts(TASKS, 1, seed=0, scored=())
    playing = asyncio.create_task(
        play_trials(left, play, keep=keep, folder=folder, tokenizer=None, concurrency=1)
    )
    await begun.wait()
    playing.cancel()
    loop.call_later(0.01, goes_on.set)
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert kept == [row["rollout_id"] for row in folder.episode_rows()] == ["a#0"]


async def test_what_ended_before_a_failure_is_kept_and_lost_ones_are_shown_whole(
    tmp_path: Path,
) -> None:
    folder = RunFolder.create(tmp_path / "run", "eval", {})
    kept: list[str] = []

    def keep(episode: Episode) -> None:
        # A trace is on disk before the row that counts its episode.
        if episode.rollout_id in ("a#0", "b#1"):
            assert episode.rollout_id in {row["rollout_id"] for row in folder.episode_rows()}
        kept.append(episode.rollout_id)

    async def play(rollout: Rollout[int]) -> Episode:
        await asyncio.sleep(0.001)
        ids = rollout.rollout_id, rollout.group_id, rollout.task_id
        if rollout.rollout_id == "a#2":
            raise KeyError("a bug")
        if rollout.rollout_id == "b#1":
            return Episode(*ids, (), Ending.lost(BoundaryError(Boundary.USER, "429")), None, [])
        return Episode(*ids, (), Ending.finished(), 1.0, [])

    with pytest.raises(KeyError, match="a bug"):
        await play_trials(
            missing_rollouts(TASKS, 30, seed=0, scored=()),
            play,
            keep=keep,
            folder=folder,
            tokenizer=None,
            concurrency=1,
        )
    assert kept[:6] == ["a#0", "b#0", "c#0", "a#1", "b#1", "c#1"] and "a#2" not in kept
    assert len(kept) < 10
    whys = {row["rollout_id"]: row["why"] for row in folder.episode_rows()}
    assert whys["b#1"] == "lost:user" and whys["a#0"] == "sample" and len(whys) < len(kept)

"""The training loop: it learns, its files are whole, it resumes bit for bit, it ends cleanly."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokendelta
import torch
from safetensors.torch import load_file
from turnwise.command import RunError, StopRun
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit
from turnwise.local.checkpoint import list_checkpoints
from turnwise.local.loop import Interrupted, train
from turnwise.local.options import TrainOptions
from turnwise.local.policy import LoadedPolicy
from turnwise.local.trainer import Job, prompt_order
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed
from turnwise.run.folder import RunFolder

EpisodeHook = Callable[[Rollout[str]], None]


def options(**changes: Any) -> TrainOptions:
    settings: dict[str, Any] = {
        "hf_checkpoint": "memory",
        "num_rollout": 4,
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 4,
        "rollout_max_response_len": 6,
        "rollout_max_context_len": 160,
        "lr": 3e-3,
        "n_samples_per_eval_prompt": 2,
        "save_interval": 2,
        "engine_rows": 16,
        "threads": 1,
    }
    return TrainOptions(**{**settings, **changes})


def make_job(tokenizer: Any, hook: EpisodeHook = lambda rollout: None) -> Job[str]:
    """Two turns; the score is the share of sampled bytes that are lower-case letters."""

    async def run(rollout: Rollout[str], policy: Policy) -> Episode:
        session = tokendelta.Session(policy.profile, max_tokens=policy.max_context_tokens)
        prompt = session.start([{"role": "user", "content": rollout.task}])
        good = sampled = 0
        ending: Ending = Ending.stopped(Limit.TURNS)
        try:
            hook(rollout)
            for turn in range(2):
                params = policy.sampling
                completion = await policy.engine.generate(
                    prompt,  # type: ignore[arg-type]
                    type(params)(
                        temperature=params.temperature,
                        max_new_tokens=params.max_new_tokens,
                        stop_token_ids=params.stop_token_ids,
                        seed=derive_seed(rollout.seed, turn),
                    ),
                    session_id=rollout.rollout_id,
                )
                session.append_sampled(completion.ids, completion.logprobs, completion.finish)
                text = policy.text(completion.ids)
                good += sum("a" <= letter <= "z" for letter in text)
                sampled += len(completion.ids)
                prompt = session.append_env([{"role": "user", "content": "more"}])
        except BoundaryError as error:
            ending = Ending.lost(error)
        finally:
            await policy.engine.release(rollout.rollout_id)
        return Episode(
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
            task_id=rollout.task_id,
            segments=session.samples().samples,
            ending=ending,
            score=good / max(sampled, 1) if ending.by_policy else None,
            transcript=[{"role": "user", "content": rollout.task}],
            metrics={"turns": 2.0},
        )

    tasks = {f"task-{name}": name for name in ("ab", "cd", "ef", "gh", "ij", "kl")}
    return Job(
        method="letters",
        train_tasks=dict(list(tasks.items())[:4]),
        eval_tasks=dict(list(tasks.items())[4:]),
        run_episode=run,
        profile=tokendelta.Profile.from_tokenizer(tokenizer),
        claim=("Letters.",),
    )


@pytest.fixture
def start(
    tmp_path: Path, tokenizer: Any, make_policy: Callable[..., Any]
) -> Callable[..., Awaitable[RunFolder]]:
    """Runs a job in `tmp_path/name` and returns its folder."""

    async def run(
        name: str = "run", *, job: Job[str] | None = None, model: Any = None, **changes: Any
    ) -> RunFolder:
        torch.set_num_threads(1)
        chosen = options(**changes)
        path = tmp_path / name
        folder = (
            RunFolder.open(path)
            if chosen.resume
            else RunFolder.create(path, "letters", chosen.model_dump(mode="json"))
        )
        policy = LoadedPolicy("memory", model or make_policy(), tokenizer)
        await train(chosen, job or make_job(tokenizer), policy, folder)
        return folder

    return run


def rows(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [row for row in folder.metric_rows() if row["kind"] == kind]


async def test_the_reward_rises_where_the_policy_can_earn_it(start: Any) -> None:
    folder = await start(num_rollout=25, rollout_batch_size=8, n_samples_per_prompt=8, lr=1e-2)
    rewards = [row["reward_mean"] for row in rows(folder, "train")]
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.2
    before, after = rows(folder, "eval")
    assert after["reward_mean"] > before["reward_mean"] + 0.2


async def test_every_rollout_of_every_step_is_accounted_for(start: Any, tokenizer: Any) -> None:
    def lose_some(rollout: Rollout[str]) -> None:
        if rollout.rollout_id.endswith("/1"):
            raise BoundaryError(Boundary.USER, "429")

    folder = await start(job=make_job(tokenizer, lose_some), num_rollout=2)
    for row in rows(folder, "train"):
        ledger = row["ledger"]
        assert ledger["started"] == 16 == ledger["stopped"]["turns"] + ledger["lost"]["user"]
        assert row["coverage"] == 0.75
        assert row["endings"] == {"stopped:turns": 12, "lost:user": 4}
        assert row["groups_kept"] == 4
    assert "lost:user" in {row["why"] for row in folder.episode_rows()}


async def test_a_group_with_too_many_lost_members_is_left_out_and_counted(
    start: Any, tokenizer: Any
) -> None:
    def lose_most(rollout: Rollout[str]) -> None:
        if rollout.group_id.endswith("/0") and not rollout.rollout_id.endswith("/0"):
            raise BoundaryError(Boundary.ENGINE, "gone")

    folder = await start(job=make_job(tokenizer, lose_most), num_rollout=1)
    (row,) = rows(folder, "train")
    assert (row["groups"], row["groups_kept"]) == (4, 3)
    assert row["groups_dropped"] == {"too_few_scored": 1}


async def test_engine_and_trainer_agree_on_every_sampled_token(start: Any) -> None:
    folder = await start()
    assert all(0 <= row["max_logprob_diff"] < 1e-4 for row in rows(folder, "train"))


async def test_a_run_stops_where_engine_and_trainer_disagree(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnwise.engine.torch_engine import TorchEngine

    async def forget(self: TorchEngine, model: Any) -> None:
        """The bug of an engine that keeps sampling from old weights."""

    monkeypatch.setattr(TorchEngine, "update_weights", forget)
    with pytest.raises(RunError, match="step 2: engine and trainer differ"):
        await start(lr=0.05)


async def test_a_resumed_run_equals_the_unbroken_one_bit_for_bit(
    start: Any, make_policy: Any
) -> None:
    whole = await start("whole")
    await start("broken", num_rollout=2)
    resumed = await start("broken", resume=True, run_dir=Path("unused"), model=make_policy(seed=9))
    last = [load_file(f.checkpoints / "step_4" / "model.safetensors") for f in (whole, resumed)]
    assert last[0].keys() == last[1].keys()
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])

    def lasting(row: dict[str, Any]) -> dict[str, Any]:
        clocks = ("_s", "_ms")
        return {key: value for key, value in row.items() if not key.endswith(clocks)}

    for kind in ("train", "eval"):
        mine = {row["step"]: lasting(row) for row in rows(whole, kind)}
        theirs = {row["step"]: lasting(row) for row in rows(resumed, kind)}
        assert {step: theirs[step] for step in mine} == mine


async def test_rows_after_the_checkpoint_are_not_written_twice(start: Any, tokenizer: Any) -> None:
    def break_off(rollout: Rollout[str]) -> None:
        if rollout.rollout_id.startswith("4/"):
            raise KeyError("crash in step 4")

    with pytest.raises(KeyError):
        await start("run", job=make_job(tokenizer, break_off))
    folder = await start("run", resume=True, run_dir=Path("unused"))
    assert [row["step"] for row in rows(folder, "train")] == [1, 2, 3, 4]
    assert [row["step"] for row in rows(folder, "eval")] == [0, 4]


async def test_the_first_interrupt_saves_the_step_and_ends_with_it(
    start: Any, tokenizer: Any, tmp_path: Path
) -> None:
    def interrupt(rollout: Rollout[str]) -> None:
        if rollout.rollout_id == "3/0/0":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="after step 3"):
        await start("run", job=make_job(tokenizer, interrupt))
    folder = RunFolder.open(tmp_path / "run")
    assert [row["step"] for row in rows(folder, "train")] == [1, 2, 3]
    assert list_checkpoints(folder.checkpoints)[-1].name == "step_3"


async def test_the_second_interrupt_stops_at_once_and_corrupts_nothing(
    start: Any, tokenizer: Any, tmp_path: Path
) -> None:
    def interrupt(rollout: Rollout[str]) -> None:
        if rollout.rollout_id in ("3/0/0", "3/0/1"):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="at once"):
        await start("run", job=make_job(tokenizer, interrupt))
    folder = RunFolder.open(tmp_path / "run")
    assert [row["step"] for row in rows(folder, "train")] == [1, 2]
    assert [path.name for path in list_checkpoints(folder.checkpoints)] == ["step_2"]
    resumed = await start("run", resume=True, run_dir=Path("unused"))
    assert [row["step"] for row in rows(resumed, "train")] == [1, 2, 3, 4]


async def test_where_no_episode_can_be_played_any_more_the_steps_done_are_saved(
    start: Any, tokenizer: Any, tmp_path: Path, make_policy: Any
) -> None:
    def out_of_money(rollout: Rollout[str]) -> None:
        if rollout.rollout_id == "4/0/0":
            raise StopRun("the cap is reached")

    whole = await start("whole")
    with pytest.raises(StopRun, match="the cap is reached; 3 of 4 steps are done and saved"):
        await start("run", job=make_job(tokenizer, out_of_money))
    folder = RunFolder.open(tmp_path / "run")
    assert [row["step"] for row in rows(folder, "train")] == [1, 2, 3]
    assert list_checkpoints(folder.checkpoints)[-1].name == "step_3"
    resumed = await start("run", resume=True, run_dir=Path("unused"), model=make_policy(seed=9))
    last = [load_file(f.checkpoints / "step_4" / "model.safetensors") for f in (whole, resumed)]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])


@pytest.mark.parametrize("steps", [0, 1])
async def test_an_interrupt_during_an_evaluation_is_not_lost(
    start: Any, tokenizer: Any, steps: int
) -> None:
    evaluations = 0

    def interrupt(rollout: Rollout[str]) -> None:
        nonlocal evaluations
        if rollout.rollout_id == "task-ij#0":
            evaluations += 1
            if evaluations == steps + 1:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="evaluation"):
        await start(job=make_job(tokenizer, interrupt), num_rollout=steps)


async def test_an_evaluation_that_an_interrupt_prevented_is_made_up(
    start: Any, tokenizer: Any
) -> None:
    def interrupt(rollout: Rollout[str]) -> None:
        if rollout.rollout_id == "2/0/0":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="after step 2"):
        await start("run", job=make_job(tokenizer, interrupt), eval_interval=2)
    folder = await start("run", resume=True, run_dir=Path("unused"), eval_interval=2)
    assert [row["step"] for row in rows(folder, "eval")] == [0, 2, 4]


async def test_a_disk_that_fills_up_ends_the_run_and_not_what_was_saved(
    start: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free = iter([10**12, 10**12, 10**6])

    def disk_usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=next(free))

    monkeypatch.setattr("shutil.disk_usage", disk_usage)
    with pytest.raises(RunError, match="step 4 can't be saved: .*needed for a checkpoint"):
        await start("run")
    folder = RunFolder.open(tmp_path / "run")
    assert [path.name for path in list_checkpoints(folder.checkpoints)] == ["step_2"]
    assert [row["step"] for row in rows(folder, "train")] == [1, 2, 3, 4]


async def test_a_run_that_is_further_than_asked_is_refused(start: Any) -> None:
    await start("run")
    with pytest.raises(ConfigError, match="is at step 4 already"):
        await start("run", resume=True, run_dir=Path("unused"), num_rollout=2)


async def test_the_lag_of_the_event_loop_is_in_the_row(start: Any) -> None:
    folder = await start(num_rollout=1)
    (row,) = rows(folder, "train")
    assert row["loop_lag_max_ms"] >= row["loop_lag_p50_ms"] >= 0


def test_every_prompt_comes_once_per_epoch_and_epochs_differ() -> None:
    steps = [prompt_order(6, 4, step, seed=1) for step in range(1, 4)]
    flat = [index for step in steps for index in step]
    assert sorted(flat[:6]) == sorted(flat[6:]) == list(range(6))
    assert flat[:6] != flat[6:]
    assert prompt_order(6, 4, 2, seed=1) == steps[1]
    assert prompt_order(6, 4, 1, seed=2) != steps[0]

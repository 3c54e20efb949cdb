"""The training loop: it learns, its files are whole, it resumes bit for bit, it ends cleanly."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from turnwise.command import RunError, StopRun
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError
from turnwise.local.checkpoint import list_checkpoints
from turnwise.local.command import LocalRun
from turnwise.local.experiment import open_experiment
from turnwise.local.loop import Interrupted, train
from turnwise.local.options import TrainOptions
from turnwise.local.policy import LoadedPolicy
from turnwise.local.record import Recorder
from turnwise.local.trainer import prompt_order
from turnwise.rollout import Rollout
from turnwise.rows import Row
from turnwise.run.folder import RunFolder
from turnwise.run.lock import locked
from turnwise.run.summary import Summary, read_summary

from local.letters import LetterOptions, Letters, letters


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


@pytest.fixture
def start(
    tmp_path: Path, tokenizer: Any, make_policy: Callable[..., Any]
) -> Callable[..., Awaitable[RunFolder]]:
    """Runs a job in `tmp_path/name` and returns its folder."""

    async def run(
        name: str = "run",
        *,
        method: type[Letters] = Letters,
        model: Any = None,
        **changes: Any,
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
        experiment = await open_experiment(chosen, method(LetterOptions()), policy)
        await train(chosen, experiment, policy, folder)
        return folder

    return run


async def test_what_a_method_has_compared_is_paired_like_the_score_and_its_curves_are_played_once(
    start: Callable[..., Awaitable[RunFolder]],
) -> None:
    class Counted(Letters):
        compared = ("turns", "absent")

        def curves(self) -> Mapping[str, Sequence[Row]]:
            points = [("long", "mn"), ("short", "op"), ("long", "qr")]
            return {"length": [Row(p, id=p, metadata={"part": part}) for part, p in points]}

    folder = await start(method=Counted, num_rollout=1)
    first, _ = rows(folder, "eval")
    assert first["compared"]["turns"] == {name: [2.0, 2.0] for name in first["scores"]}
    assert set(first["compared"]["absent"]["task-ij"]) == {None}
    found = read_summary(folder)
    assert isinstance(found, Summary)
    assert (found.compared["turns"].before.mean, found.compared["turns"].difference.mean) == (2, 0)
    assert str(found.compared["absent"]) == "not known"
    [curve] = found.tables
    assert [(row[0], *row[2:]) for row in curve.rows] == [("long", "2", "0"), ("short", "1", "0")]
    assert "After training, by length: long " in found.text() and "(1 task)" in found.text()
    assert rows(folder, "train")[0]["waiting_s"] >= 0


def rows(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [row for row in folder.metric_rows() if row["kind"] == kind]


async def test_the_reward_rises_where_the_policy_can_earn_it(start: Any) -> None:
    folder = await start(num_rollout=8, rollout_batch_size=8, n_samples_per_prompt=8, lr=1e-2)
    rewards = [row["reward_mean"] for row in rows(folder, "train")]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 1
    before, after = rows(folder, "eval")
    assert after["reward_mean"] > before["reward_mean"] + 2


async def test_every_rollout_of_every_step_is_accounted_for(start: Any, tokenizer: Any) -> None:
    def lose_some(rollout: Rollout[str]) -> None:
        if rollout.rollout_id.endswith("/1"):
            raise BoundaryError(Boundary.USER, "429")

    folder = await start(method=letters(lose_some), num_rollout=2)
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

    folder = await start(method=letters(lose_most), num_rollout=1)
    (row,) = rows(folder, "train")
    assert (row["groups"], row["groups_kept"]) == (4, 3)
    assert row["groups_dropped"] == {"too_few_scored": 1}


async def test_engine_and_trainer_agree_on_every_sampled_token(start: Any) -> None:
    folder = await start()
    assert all(0 <= row["max_logprob_diff"] < 1e-4 for row in rows(folder, "train"))
    parts = [part for row in folder.episode_rows() for part in row["segments"]]
    known = [part for part in parts if part["trainer_logprobs"]]
    assert known and all(0 <= part["gap"] < 1e-4 for part in known)
    for part in known:
        pairs = list(zip(part["logprobs"], part["trainer_logprobs"], strict=True))
        assert all((one is None) == (other is None) for one, other in pairs)
        assert all(abs(one - other) < 3e-4 for one, other in pairs if one is not None)
        assert part["advantage"] != 0 and len(part["ratios"]) == len(pairs)


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
        kept = {key: value for key, value in row.items() if not key.endswith(clocks)}
        metrics = kept.get("metrics", {})
        return {**kept, "metrics": {k: v for k, v in metrics.items() if not k.endswith(clocks)}}

    for kind in ("train", "eval"):
        mine = {row["step"]: lasting(row) for row in rows(whole, kind)}
        theirs = {row["step"]: lasting(row) for row in rows(resumed, kind)}
        assert {step: theirs[step] for step in mine} == mine


async def test_rows_after_the_checkpoint_are_not_written_twice(start: Any, tokenizer: Any) -> None:
    def break_off(rollout: Rollout[str]) -> None:
        if rollout.rollout_id.startswith("4/"):
            raise RunError("crash in step 4")

    with pytest.raises(RunError, match="crash"):
        await start("run", method=letters(break_off))
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
        await start("run", method=letters(interrupt))
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
        await start("run", method=letters(interrupt))
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
        await start("run", method=letters(out_of_money))
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
        await start(method=letters(interrupt), num_rollout=steps)


async def test_an_interrupt_while_a_run_concludes_takes_its_verdict_away_no_more(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    summarise = Recorder.summarise

    def interrupted(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return summarise(*given)

    monkeypatch.setattr(Recorder, "summarise", interrupted)
    assert read_summary(await start(num_rollout=1)) is not None


async def test_an_evaluation_that_an_interrupt_prevented_is_made_up(
    start: Any, tokenizer: Any
) -> None:
    def interrupt(rollout: Rollout[str]) -> None:
        if rollout.rollout_id == "2/0/0":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="after step 2"):
        await start("run", method=letters(interrupt), eval_interval=2)
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


async def test_the_row_says_how_late_the_event_loop_and_how_busy_the_engine_was(start: Any) -> None:
    folder = await start(num_rollout=1)
    (row,) = rows(folder, "train")
    assert row["loop_lag_max_ms"] >= row["loop_lag_p50_ms"] >= 0
    assert 0 < row["engine_busy_s"] <= row["rollout_s"]


def test_every_prompt_comes_once_per_epoch_and_epochs_differ() -> None:
    steps = [prompt_order(6, 4, step, seed=1) for step in range(1, 4)]
    flat = [index for step in steps for index in step]
    assert sorted(flat[:6]) == sorted(flat[6:]) == list(range(6))
    assert flat[:6] != flat[6:]
    assert prompt_order(6, 4, 2, seed=1) == steps[1]
    assert prompt_order(6, 4, 1, seed=2) != steps[0]


async def test_a_bug_of_the_method_loses_its_episodes_and_then_ends_the_run(
    start: Any, tmp_path: Path
) -> None:
    def broken(rollout: Rollout[str]) -> None:
        if "/" in rollout.rollout_id:
            raise KeyError("a bug")

    with pytest.raises(StopRun, match="step 1: none of 16 .* environment: KeyError: 'a bug'"):
        await start("run", method=letters(broken), num_rollout=9)
    (row,) = rows(RunFolder.open(tmp_path / "run"), "train")
    assert row["coverage"] == 0.0


async def test_an_evaluation_without_a_score_ends_the_run_and_names_each_boundary(
    start: Any,
) -> None:
    def gone(rollout: Rollout[str]) -> None:
        where = Boundary.USER if "#0" in rollout.rollout_id else Boundary.JUDGE
        raise BoundaryError(where, f"{where} is gone")

    with pytest.raises(StopRun, match="none of 4 .* user: user is gone; .* judge: judge is gone"):
        await start(method=letters(gone))


async def test_the_method_scores_a_group_by_its_members(start: Any) -> None:
    method = letters()
    method.group = staticmethod(lambda members: [float(i) for i, _ in enumerate(members)])  # type: ignore[assignment]
    folder = await start(method=method, num_rollout=1)
    (row,) = rows(folder, "train")
    assert row["reward_mean"] == 1.5


async def test_without_the_first_evaluation_on_record_there_is_no_verdict(start: Any) -> None:
    folder = await start("run", num_rollout=2)
    kept = [line for line in folder.metrics.read_text().splitlines() if '"step":0' not in line]
    assert len(kept) == 3
    folder.metrics.write_text("".join(f"{line}\n" for line in kept))
    await start("run", resume=True, run_dir=Path("unused"))
    summary = read_summary(folder)
    assert summary is not None and summary.verdict().startswith("Nothing can be said")


async def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    start: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = await start("whole")
    folder = await start("run")
    with (folder.checkpoints / "step_4" / "model.safetensors").open("r+b") as stream:
        stream.write(b"damaged")
    await start("run", resume=True, run_dir=Path("unused"))
    assert "going back to the checkpoint before it" in capsys.readouterr().err
    last = [load_file(f.checkpoints / "step_4" / "model.safetensors") for f in (whole, folder)]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])


async def test_a_second_process_is_refused_and_told_who_is_at_work(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(ConfigError, match=f"process {os.getpid()} on"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


async def test_weight_versions_in_traces_go_on_after_a_resume(start: Any) -> None:
    whole = await start("whole")
    folder = await start("run", num_rollout=2)
    await start("run", resume=True, run_dir=Path("unused"))
    found = [
        [(row["step"], row["kind"], row["info"]["weight_versions"]) for row in one.episode_rows()]
        for one in (whole, folder)
    ]
    assert {(2, "eval", (2,)), (3, "train", (2,)), (4, "eval", (4,))} <= {
        (step, kind, tuple(versions)) for step, kind, versions in found[1]
    }
    assert [row for row in found[0] if row[0] > 2] == [row for row in found[1] if row[0] > 2]


@pytest.mark.parametrize("score", [float("nan"), True, "1", 10**400])
async def test_a_group_score_that_is_no_number_ends_the_run_with_its_reason(
    start: Any, score: Any
) -> None:
    method = letters()
    method.group = staticmethod(lambda members: [score for _ in members])  # type: ignore[assignment]
    with pytest.raises(RunError, match="step 1: group_scores of letters failed: .*a score must be"):
        await start(method=method, num_rollout=1)


def test_two_runs_of_one_seed_leave_the_same_checkpoint(
    policy_folder: Path, tmp_path: Path
) -> None:
    found = []
    for name in ("one", "other"):
        torch.rand(len(found) + 1)
        argv = ["--hf-checkpoint", str(policy_folder), "--run-dir", str(tmp_path / name)]
        argv += ["--num-rollout", "1", "--rollout-batch-size", "1", "--threads", "1"]
        argv += ["--rollout-max-context-len", "160", "--rollout-max-response-len", "6"]
        assert LocalRun(Letters, argv).run() == 0
        step = tmp_path / name / "checkpoints" / "step_1"
        found.append({path.name: path.read_bytes() for path in step.iterdir()})
    assert found[0] == found[1]


async def test_the_learning_rate_falls_from_its_first_value_to_none_over_a_run(start: Any) -> None:
    for style, shares in (
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25]),
        ("cosine", [1, (1 + 2**-0.5) / 2, 0.5, (1 - 2**-0.5) / 2]),
    ):
        chosen = options(lr_decay_style=style)
        assert [chosen.lr_share(step) for step in (1, 2, 3, 4)] == pytest.approx(shares)
    folder = await start(lr_decay_style="linear", save_interval=1)
    saved = [
        torch.load(folder.checkpoints / f"step_{step}" / "trainer.pt")["optimizer"]["param_groups"]
        for step in (1, 2, 3, 4)
    ]
    rates = [group["lr"] for groups in saved for group in groups]
    assert rates == pytest.approx([3e-3, 2.25e-3, 1.5e-3, 0.75e-3])

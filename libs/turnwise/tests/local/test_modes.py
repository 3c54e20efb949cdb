"""Runs in bfloat16, with adapters and with a lag: they go on bit for bit and say their gap."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from turnwise.command import RunError
from turnwise.local.command import LocalRun
from turnwise.local.experiment import open_experiment
from turnwise.local.loop import train
from turnwise.local.options import TrainOptions
from turnwise.local.policy import LoadedPolicy
from turnwise.rollout import Rollout
from turnwise.run.folder import RunFolder

from local.letters import LetterOptions, Letters, letters

Start = Callable[..., Awaitable[RunFolder]]
# Log-probs of random weights of this size move by 0.02 where they are rounded, thirty times a real
# model's, and by 2 in a step of this rate.
ROUNDED = {"dtype": "bfloat16", "mean_logprob_diff": 1.0}
LAGGED = {"rollout_lag": 1, "use_tis": True, "mean_logprob_diff": 10.0}
MODES: dict[str, dict[str, Any]] = {
    "bfloat16": {**ROUNDED, "optimizer_cpu_offload": True},
    "recomputed": {**ROUNDED, "recompute_granularity": "full", "use_kl_loss": True},
    "lag": LAGGED,
    "bfloat16, lag": {**ROUNDED, **LAGGED, "tis_mode": "mask", "tis_level": "geometric"},
    "adapters": {"lora_rank": 4, "lr": 1e-2, "use_kl_loss": True, "kl_loss_coef": 0.01},
    "adapters, lag, bfloat16": {**ROUNDED, **LAGGED, "lora_rank": 4},
}


@pytest.fixture
def start(tmp_path: Path, tokenizer: Any, make_policy: Callable[..., Any]) -> Start:
    """Runs a job in `tmp_path/name` and returns its folder."""

    async def run(
        name: str = "run", *, method: type[Letters] = Letters, **changes: Any
    ) -> RunFolder:
        torch.set_num_threads(1)
        settings: dict[str, Any] = {
            "hf_checkpoint": "memory",
            "num_rollout": 3,
            "rollout_batch_size": 4,
            "n_samples_per_prompt": 4,
            "rollout_max_response_len": 6,
            "rollout_max_context_len": 160,
            "lr": 3e-3,
            "n_samples_per_eval_prompt": 1,
            "save_interval": 2,
            "engine_rows": 16,
            "threads": 1,
        }
        chosen = TrainOptions(**{**settings, **changes})
        path = tmp_path / name
        folder = (
            RunFolder.open(path)
            if chosen.resume
            else RunFolder.create(path, "letters", chosen.model_dump(mode="json"))
        )
        model = make_policy().to(getattr(torch, chosen.weight_dtype()))
        policy = LoadedPolicy("memory", model, tokenizer)
        experiment = await open_experiment(chosen, method(LetterOptions()), policy)
        await train(chosen, experiment, policy, folder)
        return folder

    return run


def rows(folder: RunFolder, kind: str = "train") -> list[dict[str, Any]]:
    return [row for row in folder.metric_rows() if row["kind"] == kind]


def lasting(row: dict[str, Any]) -> dict[str, Any]:
    clocks = ("_s", "_ms")
    kept = {key: value for key, value in row.items() if not key.endswith(clocks)}
    return {**kept, "metrics": {}}


@pytest.mark.parametrize("mode", MODES)
async def test_a_resumed_run_equals_the_unbroken_one_bit_for_bit(start: Start, mode: str) -> None:
    whole = await start("whole", **MODES[mode])
    await start("broken", **MODES[mode], num_rollout=2)
    resumed = await start("broken", **MODES[mode], resume=True, run_dir=Path("unused"))
    ends = [folder.checkpoints / "step_3" for folder in (whole, resumed)]
    one, other = (load_file(end / "model.safetensors") for end in ends)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    states = [torch.load(end / "trainer.pt", weights_only=True)["optimizer"] for end in ends]
    for mine, theirs in zip(*(state.get("masters", []) for state in states), strict=True):
        assert torch.equal(mine, theirs)
    for kind in ("train", "eval"):
        expected = {row["step"]: lasting(row) for row in rows(whole, kind)}
        found = {row["step"]: lasting(row) for row in rows(resumed, kind)}
        assert {step: found[step] for step in expected} == expected
    versions = [
        [(row["step"], row["kind"], row["info"]["weight_versions"]) for row in one.episode_rows()]
        for one in (whole, resumed)
    ]
    assert [row for row in versions[0] if row[0] > 2] == [row for row in versions[1] if row[0] > 2]
    # The export is a plain model of the run's precision.
    dtype = "bfloat16" if "bfloat16" in mode or mode == "recomputed" else "float32"
    loaded = AutoModelForCausalLM.from_pretrained(ends[0])
    assert loaded.dtype == getattr(torch, dtype)


async def test_rollouts_of_a_lagged_step_are_one_version_older_and_their_ratio_is_told(
    start: Start,
) -> None:
    folder = await start(**LAGGED, num_rollout=4, lr=1e-3)
    versions = {
        row["step"]: set(row["info"]["weight_versions"])
        for row in folder.episode_rows()
        if row["kind"] == "train"
    }
    assert versions == {1: {0}, 2: {0}, 3: {1}, 4: {2}}
    first, *lagged = rows(folder)
    assert first["mean_logprob_diff"] < 1e-5 and first["tis_mean"] == pytest.approx(1, abs=1e-4)
    for row in lagged:
        assert row["mean_logprob_diff"] > 1e-3
        assert 0.1 < row["tis_mean"] < 10 and 0 <= row["tis_clip_fraction"] < 1
    plain = await start("plain", num_rollout=2)
    assert all(row["tis_mean"] is None for row in rows(plain))


async def test_a_policy_learns_with_a_lag_and_the_correction(start: Start) -> None:
    folder = await start(
        **LAGGED, num_rollout=8, rollout_batch_size=8,
        n_samples_per_prompt=8, lr=1e-2, n_samples_per_eval_prompt=4,
    )  # fmt: skip
    before, after = rows(folder, "eval")
    assert after["reward_mean"] > before["reward_mean"] + 2


async def test_a_policy_learns_in_bfloat16(start: Start) -> None:
    folder = await start(
        **ROUNDED, num_rollout=8, rollout_batch_size=8, n_samples_per_prompt=8,
        lr=1e-2, n_samples_per_eval_prompt=4,
    )  # fmt: skip
    before, after = rows(folder, "eval")
    assert after["reward_mean"] > before["reward_mean"] + 2


async def test_a_rollout_ahead_that_fails_ends_the_run_at_its_own_step(
    start: Start, tmp_path: Path
) -> None:
    def break_off(rollout: Rollout[str]) -> None:
        if rollout.rollout_id.startswith("3/"):
            raise RunError("crash in step 3")

    with pytest.raises(RunError, match="crash in step 3"):
        await start("run", method=letters(break_off), **LAGGED)
    folder = RunFolder.open(tmp_path / "run")
    assert [row["step"] for row in rows(folder)] == [1, 2]
    assert (folder.checkpoints / "step_2").is_dir()


async def test_a_lagged_run_whose_engine_is_never_updated_is_stopped(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnwise.engine.torch_engine import TorchEngine

    async def forget(self: TorchEngine, model: Any) -> None:
        """The bug of an engine that keeps sampling from old weights."""

    monkeypatch.setattr(TorchEngine, "update_weights", forget)
    with pytest.raises(RunError, match=r"on average \(--mean-logprob-diff 0.1\)"):
        await start(rollout_lag=1, use_tis=True, lr=1e-3, num_rollout=40)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({}, (0.02, 0.01)),
        ({"dtype": "bfloat16"}, (2.0, 0.01)),
        ({"rollout_lag": 1}, (float("inf"), 0.1)),
        ({"rollout_lag": 1, "max_logprob_diff": 5.0, "mean_logprob_diff": 0.2}, (5.0, 0.2)),
    ],
)
def test_the_gap_that_is_allowed_follows_from_precision_and_lag(
    given: dict[str, Any], limits: tuple[float, float]
) -> None:
    assert TrainOptions(**given).logprob_limits() == limits


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ({}, "float32"),
        ({"device": "cuda"}, "float32"),
        ({"device": "cuda", "hf_checkpoint": "folder"}, "bfloat16"),
        ({"hf_checkpoint": "folder"}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
    ],
)
def test_the_shipped_policy_and_a_cpu_train_in_float32(given: dict[str, Any], dtype: str) -> None:
    assert TrainOptions(**given).weight_dtype() == dtype


def test_a_run_in_bfloat16_says_how_it_trains(
    policy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--hf-checkpoint", str(policy_folder), "--dtype", "bfloat16", "--num-rollout", "1",
        "--mean-logprob-diff", "1",
        "--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--threads", "1",
        "--rollout-max-response-len", "4", "--rollout-max-context-len", "160",
        "--n-samples-per-eval-prompt", "1", "--run-dir", str(tmp_path / "run"),
    ]  # fmt: skip
    assert LocalRun(Letters, words).run() == 0
    said = capsys.readouterr().out
    assert "Trainer: bfloat16, sdpa attention over packed rows, float32 masters" in said

"""The command: its flags, its refusals, and a whole run on a policy of a few thousand numbers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from apps.trainers.tau.local import SHIPPED_POLICY, TauOptions
from apps.trainers.tau.train import train

FLAGS = {
    "--adam-beta1", "--adam-beta2", "--backend", "--calculate-per-token-loss", "--clip-grad",
    "--concurrency", "--config", "--device", "--disable-grpo-std-normalization", "--dry-run",
    "--engine-rows", "--entropy-coef", "--env", "--eps-clip", "--eps-clip-high",
    "--eval-interval", "--eval-split", "--eval-temperature", "--hf-checkpoint",
    "--include-failing-ground-truth", "--kl-loss-coef", "--lr", "--max-logprob-diff",
    "--max-tokens-per-gpu", "--n-samples-per-eval-prompt", "--n-samples-per-prompt",
    "--num-rollout", "--num-steps-per-rollout", "--objective", "--prompt", "--resume",
    "--rollout-batch-size", "--rollout-max-context-len", "--rollout-max-response-len",
    "--rollout-temperature", "--rollout-top-k", "--rollout-top-p", "--run-dir",
    "--save-interval", "--seed", "--threads", "--use-kl-loss", "--weight-decay",
}  # fmt: skip

TINY = [
    "--num-rollout", "2", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2",
    "--n-samples-per-eval-prompt", "1", "--eval-split", "tune", "--threads", "1",
]  # fmt: skip


def test_every_flag_is_frozen() -> None:
    flags = {"--" + name.replace("_", "-") for name in TauOptions.model_fields}
    assert flags == FLAGS


def test_a_dry_run_prints_the_resolved_configuration_and_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert train(["--dry-run", "--lr", "0.5", "--run-dir", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out)["lr"] == 0.5
    assert not folder.exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--rollout-batchsize", "4"], "--rollout-batch-size"),
        (["--lr", "0"], "lr: Input should be greater than 0"),
        (["--backend", "slim"], "slim"),
        (["--prompt", "compact", "--eval-split", "test"], "prompt compact evaluates on"),
        (["--env", "airline", "--prompt", "full", "--eval-split", "test"], "no training tasks"),
        (["--resume"], "resume needs run-dir"),
        (["--kl-loss-coef", "0.1"], "kl-loss-coef needs use-kl-loss"),
        (
            ["--objective", "turn-mean", "--calculate-per-token-loss"],
            "is the objective global-token-mean; found objective turn-mean",
        ),
        (["--max-tokens-per-gpu", "100"], "max-tokens-per-gpu (100) must hold"),
    ],
)
def test_options_that_make_no_sense_exit_with_2_and_say_why(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        train(argv)
    assert caught.value.code == 2
    text = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert words in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--hf-checkpoint", "absent"], "--hf-checkpoint absent: no such folder"),
        (["--config", "absent.toml"], "absent.toml"),
        (["--resume", "--run-dir", "absent"], "absent"),
        (["--backend", "slime", "--config", "absent.toml"], "absent.toml"),
        (["--rollout-max-context-len", "200"], "system prompt and tools take"),
    ],
)
def test_what_is_missing_is_named(argv: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        train(argv)


def test_the_cluster_is_not_chosen_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('backend = "slime"')
    with pytest.raises(ValueError, match="chosen on the command line"):
        train(["--config", str(path)])


def test_a_run_folder_with_a_run_in_it_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="--run-dir"):
        train([*TINY, "--run-dir", str(tmp_path)])


def test_a_policy_that_is_half_written_is_refused(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    AutoTokenizer.from_pretrained(SHIPPED_POLICY).save_pretrained(policy)
    AutoModelForCausalLM.from_pretrained(SHIPPED_POLICY).save_pretrained(policy)
    weights = policy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="can't be read|half written"):
        train(["--hf-checkpoint", str(policy), "--run-dir", str(tmp_path / "run")])


@pytest.fixture
def small_policy(tmp_path: Path) -> Path:
    """One layer of random numbers with the shipped tokenizer: it knows nothing, but it is quick."""
    folder = tmp_path / "policy"
    AutoTokenizer.from_pretrained(SHIPPED_POLICY).save_pretrained(folder)
    config = AutoConfig.from_pretrained(SHIPPED_POLICY)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    small = Qwen3Config(**{**config.to_dict(), **sizes, "layer_types": None})
    torch.manual_seed(0)
    Qwen3ForCausalLM(small).save_pretrained(folder)
    return folder


def run(folder: Path, policy: Path, *more: str) -> subprocess.Popen[str]:
    return start(*TINY, "--hf-checkpoint", str(policy), "--run-dir", str(folder), *more)


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "apps.trainers.tau.train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"},
    )


def test_a_whole_run_ends_with_a_verdict_and_a_policy_that_loads(
    tmp_path: Path, small_policy: Path
) -> None:
    folder = tmp_path / "run"
    process = run(folder, small_policy)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert output.count("4 started = ") == 2
    assert "No rise is shown: tune score" in output
    assert "so the result flatters" in output
    assert "warmed up" not in output
    assert "Doing nothing scores 0.0 %" in output
    assert (folder / "report.html").is_file()
    model = AutoModelForCausalLM.from_pretrained(folder / "checkpoints" / "step_2")
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


def test_an_interrupted_run_exits_with_130_and_goes_on(tmp_path: Path, small_policy: Path) -> None:
    folder = tmp_path / "run"
    process = run(folder, small_policy, "--num-rollout", "200")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step"):
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=600)
    assert process.returncode == 130, rest
    assert "--resume" in rest
    assert (folder / "report.html").is_file()
    steps = [row for row in _rows(folder) if row["kind"] == "train"]
    resumed = start("--resume", "--run-dir", str(folder), "--num-rollout", str(len(steps) + 1))
    output, _ = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, output
    numbers = [row["step"] for row in _rows(folder) if row["kind"] == "train"]
    assert numbers == list(range(1, len(steps) + 2))


def test_a_resumed_run_keeps_its_options(tmp_path: Path, small_policy: Path) -> None:
    folder = tmp_path / "run"
    assert train([*TINY, "--hf-checkpoint", str(small_policy), "--run-dir", str(folder)]) == 0
    with pytest.raises(ValueError, match="--lr is 0.5, the run in .* was started with 0.0003"):
        again: Sequence[str] = ["--hf-checkpoint", str(small_policy), "--run-dir", str(folder)]
        train([*TINY, *again, "--resume", "--lr", "0.5"])


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

"""The command: options, refusals, and a whole run on a planner of a few thousand numbers."""

import json
from functools import partial
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
from turnwise.config import ConfigError
from turnwise.local.command import train_method

from apps.trainers.agentflow.method import METHOD

SHIPPED_POLICY = METHOD.shipped
train = partial(train_method, "agentflow")

OPTIONS = {
    "documents", "engine_deadline_s", "eval_per_cell", "executor_retries", "helpers", "judge",
    "malformed_penalty", "max_retries", "max_steps", "max_total_tokens", "memory_characters",
    "models", "objective", "on_malformed", "on_rewrite", "prompt", "result_characters", "sandbox",
    "tool_format", "tools", "wall_s",
}  # fmt: skip
TINY = [
    "--num-rollout", "1", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2",
    "--n-samples-per-eval-prompt", "1", "--eval-per-cell", "1", "--eval-split", "tune",
    "--threads", "1",
]  # fmt: skip
PRESET: dict[str, Any] = {
    "num_rollout": 16, "rollout_batch_size": 16, "n_samples_per_prompt": 8, "lr": 1e-3,
    "rollout_max_response_len": 64, "rollout_max_context_len": 512, "eps_clip_high": 0.28,
    "n_samples_per_eval_prompt": 2,
}  # fmt: skip
PRESET_OF_THE_METHOD: dict[str, Any] = {
    "helpers": "rules", "prompt": "compact", "on_malformed": "stop", "objective": "turn-mean",
    "tools": ["base_generator", "python_coder"],
}  # fmt: skip


def test_every_option_is_frozen() -> None:
    assert set(METHOD.Options.model_fields) == OPTIONS


def test_a_dry_run_prints_what_the_run_on_a_laptop_has_and_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert train(["--dry-run", "--max-steps", "7", "--run-dir", str(tmp_path / "run")]) == 0
    config = json.loads(capsys.readouterr().out)
    assert {name: config[name] for name in PRESET} == PRESET
    ours = config["agentflow"]
    assert {name: ours[name] for name in PRESET_OF_THE_METHOD} == PRESET_OF_THE_METHOD
    assert (ours["max_steps"], ours["sandbox"]["packages"]) == (7, [])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--hf-checkpoint", "absent"], "--hf-checkpoint absent: no such folder"),
        (["--backend", "slime", "--config", "absent.toml"], "absent.toml"),
        ([*TINY, "--rollout-max-context-len", "100"], "the longest first prompt takes"),
        (["--max-step", "4"], "--max-steps"),
        (["--max-steps", "0"], "greater than or equal to 1"),
        (["--on-malformed", "ignore"], "ignore"),
        (["--sandbox.isolation", "docker"], "docker"),
        ([*TINY[:-4], "--eval-split", "heldout"], "did you mean 'held-out'"),
        (["--helpers", "models"], "give models.base"),
        (["--tools", "calculator"], "'calculator' is neither one of"),
        (["--models.base.local", "true"], "helpers rules take none"),
    ],
)
def test_what_is_missing_is_named(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        train([*argv, "--threads", "1"])


@pytest.fixture
def small_policy(tmp_path: Path) -> Path:
    """One layer of random numbers with the shipped tokenizer: it knows nothing, but it is quick."""
    folder = tmp_path / "policy"
    AutoTokenizer.from_pretrained(SHIPPED_POLICY).save_pretrained(folder)
    config = AutoConfig.from_pretrained(SHIPPED_POLICY)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    torch.manual_seed(0)
    small = Qwen3Config(**{**config.to_dict(), **sizes, "layer_types": None})
    Qwen3ForCausalLM(small).save_pretrained(folder)
    return folder


def test_a_whole_run_ends_with_a_verdict_and_goes_on_where_it_stopped(
    tmp_path: Path, small_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = [*TINY, "--hf-checkpoint", str(small_policy), "--run-dir", str(folder)]
    assert train(words) == 0
    said = capsys.readouterr().out
    assert "No rise is shown: tune score" in said
    assert "questions with the compact prompt: 1 steps" in said
    assert "Sandbox landlock, helpers rules" in said or "Sandbox namespaces, helpers rules" in said
    assert "Always the coder scores" in said and "Never the coder scores" in said
    assert "so the result flatters" in said and "warmed up" not in said
    assert train(["--resume", "--run-dir", str(folder), "--num-rollout", "2"]) == 0
    rows = _rows(folder)
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2]
    assert (folder / "report.html").is_file()
    model = AutoModelForCausalLM.from_pretrained(folder / "checkpoints" / "step_2")
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


def test_the_shipped_planner_is_trained_on_from_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = ["--num-rollout", "2", "--n-samples-per-eval-prompt", "1", "--eval-per-cell", "1"]
    more = ["--eval-split", "tune", "--threads", "1", "--rollout-batch-size", "4"]
    assert train([*words, *more, "--run-dir", str(folder)]) == 0
    rows = [row for row in _rows(folder) if row["kind"] == "train"]
    for row in rows:
        assert row["coverage"] == 1.0 and row["trained_tokens"] > 0 and row["groups_kept"] > 0
    assert "habits that have nothing to do" in capsys.readouterr().out


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

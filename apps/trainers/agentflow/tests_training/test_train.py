"""The command: its flags, its refusals, and a whole run on a planner of a few thousand numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from apps.trainers.agentflow.local import SHIPPED_POLICY, AgentFlowTrainOptions
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from turnwise.config import ConfigError

from apps.trainers.agentflow.train import train

OWN_FLAGS = {
    "--eval-per-cell", "--eval-split", "--isolation", "--max-steps", "--on-malformed", "--prompt",
}  # fmt: skip
TINY = [
    "--num-rollout", "1", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2",
    "--n-samples-per-eval-prompt", "1", "--eval-per-cell", "1", "--eval-split", "tune",
    "--threads", "1",
]  # fmt: skip


def test_the_methods_own_flags_are_frozen() -> None:
    shared = AgentFlowTrainOptions.__mro__[1].model_fields  # type: ignore[attr-defined]
    own = set(AgentFlowTrainOptions.model_fields) - set(shared)
    assert {"--" + name.replace("_", "-") for name in own} == OWN_FLAGS


def test_a_dry_run_prints_the_resolved_configuration_and_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert train(["--dry-run", "--max-steps", "7", "--run-dir", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["max_steps"] == 7
    assert not (tmp_path / "run").exists()


def test_the_objective_is_the_papers_where_none_is_named() -> None:
    assert AgentFlowTrainOptions().loss_objective == "turn-mean"
    assert (
        AgentFlowTrainOptions(calculate_per_token_loss=True).loss_objective == "global-token-mean"
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--max-step", "4"], "--max-steps"),
        (["--max-steps", "0"], "greater than or equal to 1"),
        (["--on-malformed", "ignore"], "ignore"),
        (["--isolation", "docker"], "docker"),
        (["--eval-split", "train"], "train"),
    ],
)
def test_options_that_make_no_sense_exit_with_2_and_say_why(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        train(argv)
    assert caught.value.code == 2
    assert words in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--hf-checkpoint", "absent"], "--hf-checkpoint absent: no such folder"),
        (["--backend", "slime", "--config", "absent.toml"], "absent.toml"),
        ([*TINY, "--rollout-max-context-len", "100"], "the longest question takes"),
    ],
)
def test_what_is_missing_is_named(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        train(argv)


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

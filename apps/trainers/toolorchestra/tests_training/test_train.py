"""The command: options, refusals, and a whole run on a policy of a few thousand numbers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from turnwise.config import ConfigError
from turnwise.local.command import train_method

from apps.trainers.toolorchestra.method import METHOD

train = partial(train_method, "toolorchestra")
TINY = [
    "--num-rollout", "1", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2",
    "--n-samples-per-eval-prompt", "1", "--eval-per-cell", "1", "--eval-split", "tune",
    "--threads", "1",
]  # fmt: skip
PRESET: dict[str, Any] = {
    "experts": "rules", "prompt": "compact", "on_malformed": "stop", "run_code": False,
    "max_turns": 3, "policy_read_price": 0.0, "policy_write_price": 0.0,
}  # fmt: skip


def test_a_dry_run_prints_what_the_run_on_a_laptop_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert train(["--dry-run", "--max-turns", "7", "--run-dir", str(tmp_path / "run")]) == 0
    config = json.loads(capsys.readouterr().out)["toolorchestra"]
    assert {name: config[name] for name in PRESET} == {**PRESET, "max_turns": 7}
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--hf-checkpoint", "absent"], "--hf-checkpoint absent: no such folder"),
        ([*TINY, "--rollout-max-context-len", "60"], "the longest first prompt takes"),
        (["--max-turn", "4"], "--max-turns"),
        (["--reward", "spam"], "spam"),
        ([*TINY[:-4], "--eval-split", "heldout"], "did you mean 'held-out'"),
        ([*TINY, "--experts", "models"], "experts: "),
    ],
)
def test_what_is_missing_is_named(argv: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        train([*argv, "--threads", "1", "--run-dir", str(tmp_path / "run")])


def test_a_whole_run_ends_with_a_verdict_on_utility_accuracy_and_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, folder = tmp_path / "policy", tmp_path / "run"
    AutoTokenizer.from_pretrained(METHOD.shipped).save_pretrained(policy)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    config = {**AutoConfig.from_pretrained(METHOD.shipped).to_dict(), **sizes, "layer_types": None}
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**config)).save_pretrained(policy)
    assert train([*TINY, "--hf-checkpoint", str(policy), "--run-dir", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "Correct 0 ± 0 -> 0 ± 0" in said and "Cost_usd " in said
    assert "Always the dearest expert scores" in said and "so the result flatters" in said
    assert "Experts rules, judge rule, search generated documents" in said
    assert (folder / "report.html").is_file()


def test_the_shipped_policy_is_trained_on_from_the_first_step(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [*TINY, "--rollout-batch-size", "6", "--n-samples-per-prompt", "8"]
    assert train([*words, "--run-dir", str(folder)]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (step,) = [row for row in rows if row["kind"] == "train"]
    assert step["coverage"] == 1.0 and step["trained_tokens"] > 0 and step["groups_kept"] > 0
    assert set(rows[0]["compared"]) == {"correct", "cost_usd"}

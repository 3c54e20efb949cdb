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

from apps.trainers.memagent.method import METHOD

train = partial(train_method, "memagent")
OPTIONS = {
    "answer", "bad_memory_penalty", "callbacks", "chunk_tokens", "curve_per_cell",
    "engine_deadline_s", "eval_per_cell", "max_chunks", "max_final_tokens",
    "max_memory_tokens", "memory_price", "objective", "on_bad_memory", "on_overlong", "on_rewrite",
    "order", "prompt", "step_credit", "tokenizer", "tool_format",
}  # fmt: skip
PAPER: dict[str, Any] = {
    "chunk_tokens": 5_000, "max_memory_tokens": 1_024, "max_final_tokens": 1_024, "max_chunks": 8,
    "objective": "global-token-mean", "order": "problem-first", "prompt": "full",
    "on_bad_memory": "use", "memory_price": 0.0, "answer": "boxed",
    "step_credit": 0.0, "callbacks": 0,
}  # fmt: skip
TINY = [
    "--num-rollout", "1", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2",
    "--n-samples-per-eval-prompt", "1", "--eval-per-cell", "1", "--curve-per-cell", "0",
    "--eval-split", "tune", "--threads", "1",
]  # fmt: skip


def test_every_option_is_frozen_and_the_defaults_are_the_papers() -> None:
    assert set(METHOD.Options.model_fields) == OPTIONS
    defaults = METHOD.Options()
    assert {name: getattr(defaults, name) for name in PAPER} == PAPER


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--hf-checkpoint", "absent"], "--hf-checkpoint absent: no such folder"),
        ([*TINY, "--rollout-max-context-len", "40"], "the longest first prompt takes"),
        (["--chunk-token", "4"], "--chunk-tokens"),
        (["--on-overlong", "drop"], "drop"),
        ([*TINY[:-4], "--eval-split", "heldout"], "did you mean 'held-out'"),
        ([*TINY, "--max-chunks", "2"], "raise --memagent.max-chunks"),
    ],
)
def test_what_is_missing_is_named(argv: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        train([*argv, "--threads", "1", "--run-dir", str(tmp_path / "run")])


def test_a_whole_run_ends_with_a_verdict(
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
    assert "An empty memory scores" in said and "so the result flatters" in said
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1]
    assert (folder / "report.html").is_file()


def test_the_shipped_policy_is_trained_on_from_the_first_step(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [*TINY, "--rollout-batch-size", "6", "--n-samples-per-prompt", "8"]
    assert train([*words, "--run-dir", str(folder)]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (step,) = [row for row in rows if row["kind"] == "train"]
    assert step["coverage"] == 1.0 and step["trained_tokens"] > 0 and step["groups_kept"] > 0

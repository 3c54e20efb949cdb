"""The method of examples/, as a user copies it out: it trains, is scored, and goes to a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from turnwise import evaluate, train

OWN = "examples.order_desk:OrderDesk"
POLICY = Path(__file__).parents[2] / "apps/trainers/tau/policy"


def test_a_method_in_one_file_trains_and_rises(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert train(OWN, ["--threads", "1", "--run-dir", str(folder)]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["learned"], summary["verdict"]
    assert summary["after"]["mean"] > summary["before"]["mean"] + 0.2


def test_a_method_in_one_file_is_scored_by_the_evaluator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    argv = ["--hf-checkpoint", str(POLICY), "--trials", "2", "--threads", "1"]
    assert evaluate(OWN, [*argv, "--max-response-len", "128", "--run-dir", str(folder)]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    first = summary["measures"][0]
    assert (first["name"], summary["benchmark"]) == ("avg@2", "order_desk held-out")
    assert (first["estimate"]["tasks"], first["estimate"]["trials"]) == (48, 96)
    assert 0 < first["estimate"]["mean"] < 1 and summary["coverage"] == 1.0
    assert "tool format qwen25 (found in the chat template)" in capsys.readouterr().out
    assert "order_desk held-out" in (folder / "report.html").read_text()


def test_training_and_the_evaluator_play_the_same_episodes(tmp_path: Path) -> None:
    shared = ["--hf-checkpoint", str(POLICY), "--threads", "1", "--seed", "3"]
    before = ["--num-rollout", "0", "--n-samples-per-eval-prompt", "1"]
    assert train(OWN, [*shared, *before, "--run-dir", str(tmp_path / "train")]) == 0
    alone = ["--trials", "1", "--max-response-len", "128", "--run-dir", str(tmp_path / "eval")]
    assert evaluate(OWN, [*shared, *alone]) == 0
    scores = [
        json.loads((tmp_path / run / "metrics.jsonl").read_text().splitlines()[0])["scores"]
        for run in ("train", "eval")
    ]
    assert scores[0] == scores[1] and len(scores[0]) == 48

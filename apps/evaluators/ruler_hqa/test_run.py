"""The whole command: generated items and files, both ways to read, saved outputs graded again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from turnwise.config import ConfigError
from turnwise.evaluation.command import evaluate_benchmark
from turnwise.method import find_method

from apps.evaluators.ruler_hqa.benchmark import RulerHqa
from apps.evaluators.ruler_hqa.full_context import CUT, head_and_tail

POLICY = str(find_method("memagent").shipped)
SMALL = [
    "--hf-checkpoint", POLICY, "--items", "2", "--trials", "1", "--threads", "1",
    "--max-response-len", "8", "--documents", "3", "5", "--temperature", "0",
]  # fmt: skip
READER = [
    "--memagent.prompt", "compact", "--memagent.chunk-tokens", "400",
    "--memagent.max-memory-tokens", "8", "--memagent.max-final-tokens", "8",
]  # fmt: skip


def run(folder: Path, *argv: str) -> dict[str, Any]:
    """The summary of an evaluation."""
    assert evaluate_benchmark(RulerHqa(), [*argv, "--run-dir", str(folder)]) == 0
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return found


def table(summary: dict[str, Any], title: str) -> list[list[str]]:
    (found,) = [one for one in summary["tables"] if one["title"] == title]
    rows: list[list[str]] = found["rows"]
    return rows


def test_each_length_has_its_scores_costs_and_places(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", *SMALL, *READER)
    assert set(summary["parts"]) == {"3 documents", "5 documents"}
    scores = [row[:2] for row in table(summary, "Scores by length")]
    assert scores == [["3 documents", "2"], ["5 documents", "2"]]
    short, long = table(summary, "Cost of a trial by length")
    assert 2 <= int(short[1]) < int(long[1])
    places = table(summary, "Score by the place of the last gold document")
    assert sum(int(row[1]) for row in places) == 4
    assert any("never the best" in sentence for sentence in summary["claim"])
    assert any("gaps under ten points" in sentence for sentence in summary["claim"])


def test_the_whole_text_in_one_prompt_is_the_other_way_to_read(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", *SMALL, "--method", "full", "--max-context-len", "600")
    assert [row[1] for row in table(summary, "Cost of a trial by length")] == ["1", "1"]
    assert any("head and tail" in sentence for sentence in summary["claim"])
    rows = [json.loads(line) for line in (tmp_path / "run/trials.jsonl").read_text().splitlines()]
    assert all(row["metrics"]["lost_characters"] > 0 for row in rows)


def test_a_text_is_cut_in_its_middle() -> None:
    assert head_and_tail("0123456789", 4) == f"01{CUT}89"
    assert head_and_tail("0123", 4) == "0123"


def test_published_files_are_read_by_length(tmp_path: Path) -> None:
    items = [{"input": "Who?", "context": "Ann did it. " * 9, "answers": ["Ann"]}]
    path = tmp_path / "eval_50.json"
    path.write_text(json.dumps(items), encoding="utf-8")
    summary = run(tmp_path / "run", *SMALL, *READER, "--data", f"50={path}")
    assert [row[0] for row in table(summary, "Scores by length")] == ["50"]


def test_a_task_of_ruler_is_scored_by_its_references(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", *SMALL, *READER, "--task", "niah_multivalue")
    assert "niah_multivalue" in summary["benchmark"]
    assert [one["title"] for one in summary["tables"]][0].startswith("Cost")


def test_saved_outputs_are_graded_again_without_a_model(tmp_path: Path) -> None:
    records = [
        {"question": "Who?", "label": ["Ann", "Anna"], "output": r"\boxed{anna}"},
        {"question": "Where?", "label": "Oslo", "output": "the", "score": 1.0},
    ]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
    summary = run(tmp_path / "run", "--rescore", str(path))
    assert summary["measures"][0]["estimate"]["mean"] == 0.5
    again = run(tmp_path / "again", "--rescore", str(tmp_path / "run"))
    assert again["measures"][0]["estimate"]["mean"] == 0.5


def test_files_of_the_published_script_are_graded_again(tmp_path: Path) -> None:
    rows = [
        {"input": "Who?", "answers": ["Ann"], "response": "", "pred": "", "judge_sub_em": 1.0},
        {"input": "Where?", "answers": ["Oslo", "Christiania"], "pred": "Christiania", "_id": 1},
        {"input": "When?", "answers": ["1984"], "response": r"In \boxed{the 1984}", "pred": "x"},
    ]
    path = tmp_path / "eval_50.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")
    summary = run(tmp_path / "run", "--rescore", str(path))
    assert summary["measures"][0]["estimate"]["mean"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "argv",
    [
        ["--task", "niah"],
        ["--data", "eval_50.json"],
        ["--data", "50=gone.json"],
        ["--task", "vt", "--data", "50=gone.json"],
    ],
)
def test_what_can_not_be_evaluated_is_refused(tmp_path: Path, argv: list[str]) -> None:
    with pytest.raises(ConfigError):
        evaluate_benchmark(RulerHqa(), [*SMALL, *argv, "--run-dir", str(tmp_path / "run")])

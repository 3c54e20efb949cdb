"""Whole evaluations: solo telecom with a policy that does what the reference does, or nothing."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tau2_bench.upstream import package
from turnwise.command import run_command
from turnwise.evaluation import run
from turnwise.evaluation.command import evaluate_benchmark
from turnwise.testing import byte_policy

from apps.evaluators.tau2.benchmark import Tau2
from apps.evaluators.tau2.export import export
from apps.evaluators.tau2.playing import ReferenceEngine

SOLO = ["--env", "tau2-telecom-solo", "--task-split", "small"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ReferenceEngine:
    """Odd trials do nothing."""
    engine = ReferenceEngine(lambda task, trial: trial % 2 == 1)
    monkeypatch.setattr(run, "load", lambda *given: None)
    policy = partial(byte_policy, engine, context=400_000)
    monkeypatch.setattr(run, "make_policy", lambda *given: policy())
    return engine


def evaluate(argv: list[str]) -> int:
    return run_command(partial(evaluate_benchmark, Tau2()), argv)


def argv(folder: Path, *more: str) -> list[str]:
    return ["--hf-checkpoint", "p", "--run-dir", str(folder), "--trials", "2", *SOLO, *more]


def summary(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return data


def means(folder: Path) -> dict[str, float]:
    return {one["name"]: one["estimate"]["mean"] for one in summary(folder)["measures"]}


def test_an_evaluation_says_pass_k_beside_the_baselines_the_version_and_what_it_lacks(
    engine: ReferenceEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert evaluate(argv(folder, "--read-price", "1", "--write-price", "10")) == 0
    data = summary(folder)
    assert means(folder) == {"pass^1": 0.5, "pass^2": 0.0, "pass@2": 1.0}
    assert data["benchmark"] == "τ²-bench telecom-solo small, tasks 26.3"
    assert set(data["baselines"]) == {"doing nothing", "transferring at once"}
    assert data["services"] == {"tasks": "tau2-telecom-solo, version 26.3"}
    out = capsys.readouterr().out
    assert "doing nothing scores 0.000" in out and "τ²-bench telecom-solo small" in out
    claim = " ".join(data["claim"])
    for words in ("Solo:", "all tasks of the split base (found small)", "4 trials", "custom"):
        assert words in claim
    costs, parts = data["tables"]
    assert costs["rows"][0][0] == "policy" and float(costs["rows"][0][3]) > 0
    assert "US dollars" in costs["head"]
    assert [row[0] for row in parts["rows"]][:1] == ["ACTION"] or parts["rows"]


def test_an_evaluation_goes_on_and_plays_lost_trials_again(
    engine: ReferenceEngine, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = "tau2-telecom-solo/26.3/"
    assert evaluate(argv(folder)) == 0
    names = sorted(engine.played)
    again = tmp_path / "again"
    engine.played.clear()
    engine.broken = {names[0]}
    assert names[0].startswith(first)
    assert evaluate(argv(again)) == 0
    assert summary(again)["coverage"] == 39 / 40
    engine.broken = set()
    engine.played.clear()
    assert evaluate(["--resume", "--run-dir", str(again)]) == 0
    assert list(engine.played) == [names[0]] and summary(again)["coverage"] == 1.0
    assert means(again) == means(folder)


def test_what_was_played_is_graded_again_to_the_same_from_the_folder_and_from_a_results_file(
    engine: ReferenceEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "run", tmp_path / "results.json"
    assert evaluate(argv(folder)) == 0
    assert run_command(export, ["--run-dir", str(folder), "--out", str(file)]) == 0
    assert f"{file}: 40 conversations" in capsys.readouterr().out
    for path, name in ((folder, "a"), (file, "b")):
        again = tmp_path / name
        assert evaluate(["--rescore", str(path), "--run-dir", str(again)]) == 0
        assert means(again) == means(folder)
        assert summary(again)["coverage"] == 1.0
        out = capsys.readouterr().out
        assert "right, now right 20; wrong, now wrong 20" in out
        assert "doing nothing scores 0.000" in " ".join(summary(again)["claim"])
    # Both at once are four trials of each task.
    both = tmp_path / "both"
    assert evaluate(["--rescore", str(folder), str(file), "--run-dir", str(both)]) == 0
    assert means(both)["pass^1"] == 0.5 and summary(both)["trials"] == 4


def test_an_exported_file_is_the_packages_own_and_its_evaluator_says_the_same(
    engine: ReferenceEngine, tmp_path: Path
) -> None:
    folder, file = tmp_path / "run", tmp_path / "results.json"
    assert evaluate(argv(folder)) == 0
    assert run_command(export, ["--run-dir", str(folder), "--out", str(file)]) == 0
    of = package()
    results = of.simulation.Results.model_validate_json(file.read_text())
    tasks = {task.id: task for task in results.tasks}
    assert len(results.simulations) == 40
    for one in results.simulations:
        kind = of.evaluator.EvaluationType.ALL
        graded = of.evaluator.evaluate_simulation(one, tasks[one.task_id], kind, True, "telecom")
        assert graded.reward == one.reward_info.reward


def test_two_evaluations_are_compared_task_by_task(
    engine: ReferenceEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert evaluate(argv(one)) == 0
    engine.played.clear()
    engine.idle = lambda task, trial: False
    assert evaluate(argv(other, "--compare-with", str(one))) == 0
    out = capsys.readouterr().out
    assert "+50.0" in out and "Not like for like" not in out
    # Another user is another benchmark.
    row = json.loads((one / "metrics.jsonl").read_text())
    row["services"]["tasks"] = "tau2-telecom-solo, version 0"
    (one / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    again = tmp_path / "again"
    assert evaluate(["--compare", str(one), str(other), "--run-dir", str(again)]) == 0
    assert "Not like for like: tasks tau2-telecom-solo, version 0 and" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--env", "retail"], "is not of τ²-bench"),
        (["--env", "tau2-airline", "--task-split", "full"], "tau2-airline has train, test, base"),
        (["--env", "tau2-telecom", "--task-set", "v1.0"], "the tasks of tau2-telecom are 26.3"),
        (["--env", "tau2-retail"], "a judge must find true"),
        (["--env", "tau2-mock", "--user.strategy", "human"], "needs --concurrency 1"),
        (["--env", "tau2-airline", "--agent-strategy", "act"], "is played with tool-calling"),
        (["--env", "tau2-airline", "--prompt", "compact"], "prompt: compact"),
        (["--env", "tau2-bank"], "tau2-bank"),
    ],
)
def test_options_that_make_no_sense_exit_with_2(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(["--hf-checkpoint", "a", *options]) == 2
    assert words in capsys.readouterr().err

"""Two evaluations against each other, from their folders."""

import json
from pathlib import Path
from typing import Any

import pytest
from turnwise.command import run_command
from turnwise.engine.scripted import ScriptedEngine
from turnwise.evaluation.benchmark import Benchmark
from turnwise.evaluation.command import evaluate_benchmark
from turnwise.evaluation.folder import EvalFolder
from turnwise.evaluation.results import conclude

from evaluation.fakes import Words, echo, rows, summary, write_run

Scores = dict[str, list[float | None]]


def ended(folder: Path, scores: Scores, **config: Any) -> Path:
    """An evaluation that has been summed up."""
    conclude(EvalFolder.open(write_run(folder, scores, **config)), Benchmark())
    return folder


def compare(tmp_path: Path, before: Path, after: Path) -> int:
    argv = ["--compare", str(before), str(after), "--run-dir", str(tmp_path / "out")]
    return run_command(lambda given: evaluate_benchmark(Words(), given), argv)


def comparison(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "out" / "comparison.json").read_text())


def test_a_rise_at_every_task_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = ended(tmp_path / "plain", {f"a/q{n}": [0.0, 0.0] for n in range(8)})
    after = ended(tmp_path / "trained", {f"a/q{n}": [1.0, float(n % 2)] for n in range(8)})
    assert compare(tmp_path, before, after) == 0
    found = comparison(tmp_path)["differences"]["a"]
    # Means rise by 1 and by 1/2 in turn.
    assert found["mean"] == pytest.approx(0.75)
    assert found["low"] > 0.5 and found["high"] < 1 and found["tasks"] == 8
    out = capsys.readouterr().out
    assert "Against plain: +75.0 points" in out and "a difference is shown" in out
    assert "16 started = 16 finished" in out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Against plain: +75.0" in page and "a/7" in page and "+1.00" in page


def test_no_difference_is_shown_where_chance_suffices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ended(tmp_path / "one", {f"a/q{n}": [float(n == 0)] for n in range(8)})
    after = ended(tmp_path / "two", {f"a/q{n}": [float(n in (1, 2))] for n in range(8)})
    assert compare(tmp_path, before, after) == 0
    assert "no difference is shown" in capsys.readouterr().out


def test_tasks_are_paired_by_their_keys_and_differences_told_by_part(tmp_path: Path) -> None:
    before = ended(tmp_path / "one", {"old/x": [1.0], "old/y": [0.0], "old/z": [0.0]})
    after = ended(tmp_path / "two", {"a/z": [0.0], "b/y": [0.0], "b/x": [1.0]})
    assert compare(tmp_path, before, after) == 0
    found = comparison(tmp_path)["differences"]
    assert list(found) == ["a", "b", "all"]
    assert found["all"]["mean"] == 0.0 and found["all"]["stderr"] == 0.0
    assert set(summary(tmp_path / "out")["parts"]) == {"a", "b"}


def test_lost_trials_bound_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ended(tmp_path / "one", {"a/x": [0.0, 0.0], "a/y": [0.0, 0.0]})
    after = ended(tmp_path / "two", {"a/x": [1.0, None], "a/y": [None, None]})
    assert compare(tmp_path, before, after) == 0
    found = comparison(tmp_path)["differences"]["a"]
    assert (found["tasks"], found["mean"]) == (1, 1.0)
    assert (found["worst"], found["best"]) == (0.25, 1.0)
    assert "lost trials against or for the change: +25.0 to +100.0" in capsys.readouterr().out


def test_another_sampling_is_said_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ended(tmp_path / "greedy", {"a/x": [0.0], "a/y": [0.0]}, temperature=0.0)
    after = ended(tmp_path / "sampled", {"a/x": [1.0], "a/y": [1.0]})
    capsys.readouterr()
    assert compare(tmp_path, before, after) == 0
    out = capsys.readouterr().out
    assert out.startswith("Not like for like: --temperature 0.0 and 0.7. Against greedy")


def test_another_user_is_said_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores: Scores = {"a/x": [0.0], "a/y": [1.0]}
    for name in ("first", "second"):
        about = write_run(tmp_path / name, scores) / "about.json"
        told = {**json.loads(about.read_text()), "players": {"user": name, "judge": "one"}}
        about.write_text(json.dumps(told))
        conclude(EvalFolder.open(tmp_path / name), Benchmark())
    capsys.readouterr()
    assert compare(tmp_path, tmp_path / "first", tmp_path / "second") == 0
    out = capsys.readouterr().out
    assert out.startswith("Not like for like: user first and second. Against first")


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    before = ended(tmp_path / "one" / "run", {"a/x": [0.0], "a/y": [0.0]})
    after = ended(tmp_path / "two" / "run", {"a/x": [1.0], "a/y": [1.0]})
    assert compare(tmp_path, before, after) == 0
    found = comparison(tmp_path)
    assert (found["before"], found["after"]) == ("one/run", "two/run")


def test_an_evaluation_is_compared_with_another_as_it_ends(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert echo(tmp_path / "a", "--wish", "a") == 0
    assert echo(tmp_path / "b", "--compare-with", str(tmp_path / "a")) == 0
    said = summary(tmp_path / "b")["compared"]
    assert said.startswith("Against a: +66.7 points, paired over 3 tasks")
    out = capsys.readouterr().out
    assert said in out
    change = "right 0.333 ± 0.33 -> 1 ± 0, +0.667 ± 0.33 (+2.0 standard errors), against a"
    assert summary(tmp_path / "b")["notes"][-1] == change
    (row,) = rows(tmp_path / "b", "metrics.jsonl")
    (picture,) = row["pictures"]
    assert picture["points"]["silence"] == [0.0, 0.0] and picture["points"]["a"][1] < 0.4
    # A run without tasks.jsonl, such as a training's, is paired by the tasks' names.
    (tmp_path / "a" / "tasks.jsonl").unlink()
    assert echo(tmp_path / "c", "--compare-with", str(tmp_path / "a")) == 0
    assert summary(tmp_path / "c")["compared"] == said
    data = tmp_path / "d.jsonl"
    data.write_text('{"input": "x"}\n')
    other = ["--prompt-data", str(data), "--compare-with", str(tmp_path / "a")]
    assert echo(tmp_path / "d", *other) == 2
    assert "4 are in one of the two runs alone, first d-1" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_what_cannot_be_compared_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ended(tmp_path / "one", {"a/x": [0.0], "a/y": [0.0]})
    other = ended(tmp_path / "other", {"a/x": [0.0], "a/z": [0.0]})
    assert compare(tmp_path, before, other) == 2
    assert "2 are in one of the two runs alone, first a/1" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert compare(tmp_path, before, tmp_path / "empty") == 2
    assert "it has no config.json" in capsys.readouterr().err
    unfinished = write_run(tmp_path / "unfinished", {"a/x": [0.0], "a/y": [0.0]})
    assert compare(tmp_path, unfinished, before) == 2
    assert "no evaluation in it has ended" in capsys.readouterr().err
    journal = unfinished / "trials.jsonl"
    journal.write_text(journal.read_text().splitlines()[0] + "\n")
    assert compare(tmp_path, before, unfinished) == 2
    assert "1 of 2 trials are missing, first trial 0 of task a/1" in capsys.readouterr().err
    metrics = other / "metrics.jsonl"
    metrics.write_text('{"kind": "eval"}\n')
    assert compare(tmp_path, other, before) == 2
    assert "metrics.jsonl: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

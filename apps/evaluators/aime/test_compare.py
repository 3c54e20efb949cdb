"""Two evaluations against each other, from their folders."""

import json
from pathlib import Path
from typing import Any

import pytest
from apps.evaluators.aime.run import evaluate_here
from turnwise.command import run_command

from apps.evaluators.aime.fakes import write_run


def compare(tmp_path: Path, before: Path, after: Path) -> int:
    pair = ["--compare", str(before), str(after)]
    return run_command(evaluate_here, [*pair, "--run-dir", str(tmp_path / "out")])


def comparison(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "out" / "comparison.json").read_text())


def test_a_rise_at_every_problem_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write_run(tmp_path / "plain", {f"a/q{n}": [0.0, 0.0] for n in range(8)})
    after = write_run(tmp_path / "trained", {f"a/q{n}": [1.0, float(n % 2)] for n in range(8)})
    assert compare(tmp_path, before, after) == 0
    found = comparison(tmp_path)["differences"]["a"]
    # Means rise by 1 and by 1/2 in turn.
    assert found["mean"] == pytest.approx(0.75)
    assert found["low"] > 0.5 and found["high"] < 1 and found["tasks"] == 8
    out = capsys.readouterr().out
    assert "trained is better" in out and "+75.0 points" in out
    assert "16 started = 16 finished" in out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "trained is better" in page and "a/8" in page


def test_no_difference_is_shown_where_chance_suffices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write_run(tmp_path / "one", {f"a/q{n}": [float(n == 0)] for n in range(8)})
    after = write_run(tmp_path / "two", {f"a/q{n}": [float(n in (1, 2))] for n in range(8)})
    assert compare(tmp_path, before, after) == 0
    assert "No difference is shown" in capsys.readouterr().out


def test_problems_are_paired_by_their_text_not_their_place(tmp_path: Path) -> None:
    before = write_run(tmp_path / "one", {"old/x": [1.0], "old/y": [0.0], "old/z": [0.0]})
    after = write_run(tmp_path / "two", {"a/z": [0.0], "b/y": [0.0], "b/x": [1.0]})
    assert compare(tmp_path, before, after) == 0
    found = comparison(tmp_path)["differences"]
    assert list(found) == ["a", "b", "all"]
    assert found["all"]["mean"] == 0.0 and found["all"]["stderr"] == 0.0


def test_a_question_that_stands_twice_is_no_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write_run(tmp_path / "one", {"a/x": [1.0], "b/x": [0.0]})
    after = write_run(tmp_path / "two", {"a/x": [1.0], "b/x": [1.0]})
    assert compare(tmp_path, before, after) == 2
    assert "one: b/1 is the question of a/1 again" in capsys.readouterr().err


def test_lost_attempts_bound_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write_run(tmp_path / "one", {"a/x": [0.0, 0.0], "a/y": [0.0, 0.0]})
    after = write_run(tmp_path / "two", {"a/x": [1.0, None], "a/y": [None, None]})
    assert compare(tmp_path, before, after) == 0
    found = comparison(tmp_path)["differences"]["a"]
    assert (found["tasks"], found["mean"]) == (1, 1.0)
    assert (found["worst"], found["best"]) == (0.25, 1.0)
    assert "lost attempts against or for the change: +25.0 to +100.0" in capsys.readouterr().out


def test_another_sampling_is_said_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write_run(tmp_path / "greedy", {"a/x": [0.0], "a/y": [0.0]}, temperature=0.0)
    after = write_run(tmp_path / "sampled", {"a/x": [1.0], "a/y": [1.0]})
    assert compare(tmp_path, before, after) == 0
    out = capsys.readouterr().out
    assert out.startswith("Not like for like.")
    assert "not the same: --temperature 0.0 and 0.7" in out


def test_folders_of_one_name_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write_run(tmp_path / "one" / "run", {"a/x": [0.0], "a/y": [0.0]})
    after = write_run(tmp_path / "two" / "run", {"a/x": [1.0], "a/y": [1.0]})
    assert compare(tmp_path, before, after) == 0
    assert "two/run is better" in capsys.readouterr().out


def test_what_cannot_be_compared_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write_run(tmp_path / "one", {"a/x": [0.0], "a/y": [0.0]})
    other = write_run(tmp_path / "other", {"a/x": [0.0], "a/z": [0.0]})
    assert compare(tmp_path, before, other) == 2
    assert "2 are in one alone, first a/2" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert compare(tmp_path, before, tmp_path / "empty") == 2
    assert "it has no config.json" in capsys.readouterr().err
    journal = tmp_path / "other" / "trials.jsonl"
    journal.write_text(journal.read_text().splitlines()[0] + "\n")
    assert compare(tmp_path, before, other) == 2
    assert "1 of 2 attempts are missing, first attempt 0 at a/2" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

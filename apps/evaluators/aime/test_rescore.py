"""Saved outputs graded again: own folders, records of others, and what is no record."""

import json
from pathlib import Path
from typing import Any

import pytest
from apps.evaluators.aime.run import evaluate_here
from turnwise.command import run_command

from apps.evaluators.aime import fakes
from apps.evaluators.aime.fakes import rows, write_run

Json = dict[str, Any]


def record(question: str, output: str, label: str = "3", score: float = 0.0, **more: Any) -> Json:
    return {
        "question": question, "prediction": "?", "label": label, "score": score, "output": output,
        **more,
    }  # fmt: skip


def rescore(tmp_path: Path, *paths: Path) -> int:
    named = [str(path) for path in paths]
    return run_command(evaluate_here, ["--rescore", *named, "--run-dir", str(tmp_path / "out")])


def results(tmp_path: Path) -> Json:
    return fakes.results(tmp_path / "out")


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_a_file_of_records_is_graded_again_and_changes_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path / "eval_results.json",
        [
            record("q1", "\\boxed{3}<|im_end|>", score=1.0),
            record("q2", "\\boxed{03}", score=0.0),
            record("q3", "true, I think: 3<|im_end|>\n", score=1.0),
            record("q4", "", score=0.0),
        ],
    )
    assert rescore(tmp_path, path) == 0
    found = results(tmp_path)
    assert found["kind"] == "rescore"
    assert found["sets"]["eval_results"]["avg"]["estimate"]["mean"] == 0.5
    assert found["runs"] == [{"name": "eval_results", "outputs": 4, "saved": 0.5, "now": 0.5}]
    assert found["agreement"] == {
        "right, now right": 1, "wrong, now right": 1, "right, now wrong": 1, "wrong, now wrong": 1,
    }  # fmt: skip
    assert found["markers"] == 2
    out = capsys.readouterr().out
    assert "2 outputs end with the text of a special token" in out
    assert "no model was asked" in out
    assert "Saved runs" in (tmp_path / "out" / "report.html").read_text()


def test_several_runs_show_what_their_best_is_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right, wrong = "\\boxed{3}", "\\boxed{4}"
    by_rollout = {
        "0": [record("q1", right), record("q2", wrong)],
        "20": [record("q1", right), record("q2", right)],
    }
    assert rescore(tmp_path, write(tmp_path / "eval_scores.json", by_rollout)) == 0
    found = results(tmp_path)
    assert [run["name"] for run in found["runs"]] == ["eval_scores/0", "eval_scores/20"]
    assert [run["now"] for run in found["runs"]] == [0.5, 1.0]
    assert (found["spread"]["mean"], found["spread"]["best"]) == (0.75, 1.0)
    assert found["sets"]["eval_scores"]["k"] == 2
    assert "graded now: 2 single runs scatter by 35.4 points" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["flat", "nested", "lines", "files"])
def test_runs_are_found_however_they_are_write_run(tmp_path: Path, how: str) -> None:
    rows = [record("q1", "\\boxed{3}", rollout_id=n) for n in (0, 20)]
    path = tmp_path / "scores.json"
    paths = [path]
    if how == "flat":
        write(path, rows)
    elif how == "nested":
        write(path, [{"rollout_id": row["rollout_id"], "samples": [row]} for row in rows])
    elif how == "lines":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        paths = [write(tmp_path / f"{n}.json", [record("q1", "\\boxed{3}")]) for n in (0, 20)]
    assert rescore(tmp_path, *paths) == 0
    assert [run["now"] for run in results(tmp_path)["runs"]] == [1.0, 1.0]


def test_an_output_that_one_run_lacks_counts_as_lost_in_that_run(tmp_path: Path) -> None:
    one = write(tmp_path / "1.json", [record("q1", "\\boxed{3}")])
    two = write(tmp_path / "2.json", [record(q, "\\boxed{3}") for q in ("q1", "q2")])
    assert rescore(tmp_path, one, two) == 0
    found = results(tmp_path)["sets"]["saved"]
    assert (found["attempts"], found["scored"]) == (4, 3)
    assert (found["avg"]["estimate"]["mean"], found["avg"]["low"]) == (1.0, 0.75)
    lost = [row for row in rows(tmp_path / "out") if row["score"] is None]
    assert [(row["task_id"], row["trial"]) for row in lost] == [("saved/2", 0)]


def test_a_prediction_alone_is_graded_as_an_answer(tmp_path: Path) -> None:
    rows: list[Json] = [record("q1", ""), record("q2", ""), record("q3", "")]
    for row, prediction in zip(rows, ("3", 3, None), strict=True):
        del row["output"]
        row["prediction"] = prediction
    assert rescore(tmp_path, write(tmp_path / "a.json", rows)) == 0
    assert results(tmp_path)["sets"]["a"]["by"] == {"box": 2, "empty": 1}


def test_an_own_run_is_graded_again_and_its_lost_attempts_stay_lost(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"a/x": [1.0, None], "a/y": [0.0, 1.0]})
    assert rescore(tmp_path, folder) == 0
    found = results(tmp_path)
    assert found["agreement"] == {"right, now right": 2, "none, now none": 1, "wrong, now wrong": 1}
    assert found["ledger"]["lost"] == {"engine": 1}
    again = [(row["task_id"], row["trial"], row["score"]) for row in rows(tmp_path / "out")]
    assert again == [("run/1", 0, 1), ("run/1", 1, None), ("run/2", 0, 0), ("run/2", 1, 1)]
    # Its journal alone says the same.
    other = tmp_path / "other"
    other.mkdir()
    assert rescore(other, folder / "trials.jsonl") == 0
    assert results(other)["agreement"] == found["agreement"]


def test_a_rescored_file_can_be_compared_with_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, answer in (("old", "\\boxed{4}"), ("new", "\\boxed{3}")):
        path = write(tmp_path / f"{name}.json", [record(q, answer) for q in ("q1", "q2")])
        argv = ["--rescore", str(path), "--run-dir", str(tmp_path / name)]
        assert run_command(evaluate_here, argv) == 0
    pair = ["--compare", str(tmp_path / "old"), str(tmp_path / "new")]
    assert run_command(evaluate_here, [*pair, "--run-dir", str(tmp_path / "out")]) == 0
    assert "new is better" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "holds no record"),
        ({"a": [1, 2]}, "holds no record"),
        ([record("q", "x"), 5], r"record [1]: expected question, label and output"),
        ([record("", "x")], "question: expected a text, found ''"),
        ([record("q", "x") | {"label": None}], "label: expected a text or a number, found None"),
        ([record("q", "x") | {"score": "1"}], "score: expected a number, found '1'"),
        ([record("q", "x") | {"output": 5}], "output: expected a text, found 5"),
        ([record("q", "x"), record("q", "x", label="4")], "has the labels '3' and '4'"),
        ([record("q", "x") | {"kind": "exploded"}], "unknown ending 'exploded'"),
        ([record("q", "x") | {"trial": -1}], "trial: expected a number from 0 on, found -1"),
        ([record("q", "x", trial=2), record("q", "x", trial=2)], "attempt 2 at 'q' stands 2 times"),
    ],
)
def test_what_is_no_record_is_named(
    tmp_path: Path, value: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rescore(tmp_path, write(tmp_path / "a.json", value)) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_json_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record("q", "x")) + "\n{\n")
    assert rescore(tmp_path, path) == 2
    assert "a.jsonl:2: not valid JSON" in capsys.readouterr().err
    assert rescore(tmp_path, tmp_path / "nowhere.json") == 2
    assert "nowhere.json: No such file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert rescore(tmp_path, tmp_path / "empty") == 2
    assert "has no problems.jsonl" in capsys.readouterr().err

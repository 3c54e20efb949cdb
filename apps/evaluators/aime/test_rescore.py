"""Saved outputs graded again: own folders, records of others, and what is no record."""

import json
from pathlib import Path
from typing import Any

import pytest
from turnwise.engine.scripted import Reply, ScriptedEngine, fail, reply

from apps.evaluators.aime import fakes
from apps.evaluators.aime.fakes import evaluate, rows

Json = dict[str, Any]


def record(question: str, output: str, label: str = "3", score: float = 0.0, **more: Any) -> Json:
    return {
        "question": question, "prediction": "?", "label": label, "score": score, "output": output,
        **more,
    }  # fmt: skip


def rescore(tmp_path: Path, *paths: Path) -> int:
    named = [str(path) for path in paths]
    return evaluate(tmp_path / "out", "--rescore", *named, policy=[])


def results(tmp_path: Path) -> Json:
    return fakes.summary(tmp_path / "out")


def runs(tmp_path: Path) -> list[list[str]]:
    """The rows of the table of saved runs."""
    found = {table["title"]: table["rows"] for table in results(tmp_path)["tables"]}
    rows: list[list[str]] = found["Saved runs"]
    return rows


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
    assert found["measures"][0]["estimate"]["mean"] == 0.5
    assert runs(tmp_path) == [["eval_results", "4", "50.0%", "50.0%"]]
    assert (
        "as saved and as graded now: right, now right 1; wrong, now right 1; right, now wrong 1;"
        " wrong, now wrong 1" in found["notes"]
    )
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
    assert [run[0] for run in runs(tmp_path)] == ["eval_scores/0", "eval_scores/20"]
    assert [run[3] for run in runs(tmp_path)] == ["50.0%", "100.0%"]
    assert found["trials"] == 2
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
    assert [run[3] for run in runs(tmp_path)] == ["100.0%", "100.0%"]


def test_an_output_that_one_run_lacks_counts_as_lost_in_that_run(tmp_path: Path) -> None:
    one = write(tmp_path / "1.json", [record("q1", "\\boxed{3}")])
    two = write(tmp_path / "2.json", [record(q, "\\boxed{3}") for q in ("q1", "q2")])
    assert rescore(tmp_path, one, two) == 0
    first = results(tmp_path)["measures"][0]
    assert first["estimate"]["trials"] == 3 and results(tmp_path)["coverage"] == 0.75
    assert (first["estimate"]["mean"], first["low"]) == (1.0, 0.75)
    lost = [row for row in rows(tmp_path / "out") if row["score"] is None]
    assert [(row["task_id"], row["trial"]) for row in lost] == [("saved/2", 0)]


def test_a_prediction_alone_is_graded_as_an_answer(tmp_path: Path) -> None:
    saved: list[Json] = [record("q1", ""), record("q2", ""), record("q3", "")]
    for row, prediction in zip(saved, ("3", 3, None), strict=True):
        del row["output"]
        row["prediction"] = prediction
    assert rescore(tmp_path, write(tmp_path / "a.json", saved)) == 0
    assert sorted(row["by"] for row in rows(tmp_path / "out")) == ["box", "box", "empty"]


def test_an_own_run_is_graded_again_and_its_lost_attempts_stay_lost(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    data, folder = tmp_path / "a.jsonl", tmp_path / "run"
    data.write_text('{"prompt": "1 + 1?", "label": "2"}\n{"prompt": "1 + 2?", "label": "3"}\n')
    turns = iter(["\\boxed{2}", "\\boxed{2}", "", "\\boxed{3}"])

    def answer(prompt: object) -> Reply:
        said = next(turns)
        return reply([*fakes.byte_tokenizer().encode(said), 2]) if said else fail("gone")

    engine._function = answer
    argv = ["--data", str(data), "--n-samples-per-eval-prompt", "2", "--concurrency", "1"]
    assert evaluate(folder, *argv) == 0
    journal = folder / "trials.jsonl"
    saved = [(row["task_id"], row["trial"], row["score"]) for row in rows(folder)]
    assert saved == [("a/1", 0, 1), ("a/2", 0, 0), ("a/1", 1, None), ("a/2", 1, 1)]
    assert rescore(tmp_path, folder) == 0
    agreed = "as saved and as graded now: right, now right 2; wrong, now wrong 1; none, now none 1"
    assert agreed in results(tmp_path)["notes"]
    (row,) = rows(tmp_path / "out", "metrics.jsonl")
    assert row["ledger"]["lost"] == {"engine": 1}
    again = [(row["task_id"], row["trial"], row["score"]) for row in rows(tmp_path / "out")]
    assert again == [("run/1", 0, 1), ("run/2", 0, 0), ("run/1", 1, None), ("run/2", 1, 1)]
    # Its journal alone says the same.
    other = tmp_path / "other"
    other.mkdir()
    assert rescore(other, journal) == 0
    assert agreed in results(other)["notes"]
    journal.write_text(journal.read_text().replace('"trial":1', '"trial":1000000000'))
    assert rescore(tmp_path / "huge", folder) == 2
    assert not (tmp_path / "huge" / "out").exists()


def test_a_rescored_file_can_be_compared_with_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, answer in (("old", "\\boxed{4}"), ("new", "\\boxed{3}")):
        path = write(tmp_path / f"{name}.json", [record(q, answer) for q in ("q1", "q2")])
        assert evaluate(tmp_path / name, "--rescore", str(path), policy=[]) == 0
    pair = ["--compare", str(tmp_path / "old"), str(tmp_path / "new")]
    assert evaluate(tmp_path / "out", *pair, policy=[]) == 0
    assert "Against old: +100.0 points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "holds no record"),
        ({"a": [1, 2]}, "holds no record"),
        ([record("q", "x"), 5], r"record [1]: expected question, label and output"),
        ([record("", "x")], "question: expected a text, found ''"),
        ([record("q", "x") | {"label": None}], "label: expected a text or a number"),
        ([record("q", "x") | {"score": "1"}], "score: expected a number, found '1'"),
        ([record("q", "x") | {"output": 5}], "output: expected a text, found 5"),
        ([record("q", "x"), record("q", "x", label="4")], "has the labels '3' and '4'"),
        ([record("q", "x") | {"kind": "exploded"}], "unknown ending 'exploded'"),
        ([record("q", "x") | {"trial": -1}], "trial: expected a number from 0 to 9999, found -1"),
        (
            [record("q", "x", trial=9999), *(record(f"q{n}", "x", trial=0) for n in range(100))],
            "10,000 trials of 101 tasks are more than 1,000,000",
        ),
        ([record("q", "x", trial=2), record("q", "x", trial=2)], "trial 2 at 'q' stands 2 times"),
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
    assert "has no config.json" in capsys.readouterr().err

"""`check` where the tasks are τ²-bench's: what it finds, and what it says of what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from turnwise.launch.plan import Plan, make_plan
from turnwise.launch.preset import read_run
from turnwise.method import make_method
from turnwise.preflight import Line, run_checks

from apps.trainers.tau.method import METHOD
from apps.trainers.tau.prepare import prepare

PRESET = Path(METHOD.preset or "").parent / "tau2-telecom-solo.toml"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tau2")
    prepare(["--local-dir", str(folder), "--env", "tau2-telecom-solo", "tau2-retail"])
    return folder


def lines(data: Path, train: str, test: str, *overrides: str) -> dict[str, Line]:
    given = ["--prompt-data", str(data / train), "--eval-prompt-data", "test", str(data / test)]
    given += ["--hf-checkpoint", str(METHOD.shipped), "--ref-load", str(METHOD.shipped)]
    plan: Plan = make_plan(read_run(PRESET, [*given, *overrides]), run_dir=Path("run"))
    options = dict(plan.custom_config["turnwise"])
    method = make_method(options.pop("method"), options)
    return {line.name: line for line in run_checks(method.checks(plan))}


def test_a_run_on_solo_telecom_needs_neither_user_nor_judge(data: Path) -> None:
    found = lines(data, "tau2-telecom-solo_rest.jsonl", "tau2-telecom-solo_test.jsonl")
    assert found["template"].verdict == "ok"
    assert "2171 tasks of telecom 26.3" in found["data"].found
    assert "40 tasks" in found["data test"].found
    assert "2211 tasks: 1.0 for the solution, 0.000 for doing nothing" in found["grader"].found
    assert "solo: there is none" in found["user"].found and found["judge"].verdict == "ok"
    assert "no user to pay" in found["price"].found
    # The shipped policy's conversations are far too short for it.
    assert "the first prompt has" in found["tool format"].found


def test_a_task_that_is_trained_on_and_evaluated_on_is_told(data: Path) -> None:
    same = "tau2-telecom-solo_test.jsonl"
    line = lines(data, same, same)["data"]
    assert line.verdict == "note" and "40 tasks are trained on and evaluated on" in line.found


def test_rows_that_need_a_judge_and_have_none_fail_with_their_place(data: Path) -> None:
    found = lines(data, "tau2-retail_train.jsonl", "tau2-telecom-solo_test.jsonl")
    assert found["data"].verdict == "FAIL"
    assert "tau2-retail_train.jsonl" in found["data"].found and "judge" in found["data"].found


def test_rows_of_another_version_fail(data: Path, tmp_path: Path) -> None:
    row = json.loads((data / "tau2-telecom-solo_test.jsonl").read_text().splitlines()[0])
    row["metadata"]["content_hash"] = "0" * 12
    (tmp_path / "old.jsonl").write_text(json.dumps(row) + "\n")
    found = lines(tmp_path, "old.jsonl", "old.jsonl")["data"]
    assert found.verdict == "FAIL" and "write the rows anew" in found.found

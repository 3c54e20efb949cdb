"""Results files of the package: read whatever made them, and graded as they were."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from taubench.tau2 import (
    Call,
    Environment,
    Tau2Task,
    flags,
    load_tasks,
    messages_to_json,
    task_by_id,
)
from turnwise.command import run_command
from turnwise.evaluation.command import evaluate_benchmark

from apps.evaluators.tau2.benchmark import Tau2
from apps.evaluators.tau2.playing import serving

STOP = "###STOP###"


def evaluate(argv: list[str]) -> int:
    return run_command(partial(evaluate_benchmark, Tau2()), argv)


def summary(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return data


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def played(task: Tau2Task, *, right: bool) -> list[dict[str, Any]]:
    """A conversation in which the agent does what the reference does, or nothing."""
    environment = Environment(task, max_errors=1000)
    environment.user_step("Hello.")
    criteria = task.criteria
    assert criteria is not None
    for action in (criteria.actions or ()) if right else ():
        environment.step(None, [Call(action.name, action.arguments)])
    environment.step(" ".join(["Done.", *(criteria.communicate if right else ())]))
    environment.user_step(f"Thanks. {STOP}")
    return messages_to_json(environment.history)


def simulation(task: Tau2Task, trial: int | None, reward: float, **more: Any) -> dict[str, Any]:
    return {
        "id": "x",
        "task_id": task.id,
        "start_time": "",
        "end_time": "",
        "duration": 1.0,
        "termination_reason": "user_stop",
        "reward_info": {"reward": reward},
        "messages": played(task, right=reward == 1.0),
        "trial": trial,
        **more,
    }


def dumped(task: Tau2Task) -> dict[str, Any]:
    """The task as the package's models write it: with what it does not have as null."""
    raw = dict(task.raw)
    raw.setdefault("ticket", None)
    raw.setdefault("initial_state", None)
    return raw


def results(path: Path, domain: str, tasks: list[Tau2Task], runs: list[dict[str, Any]]) -> Path:
    value = {
        "timestamp": "2026-01-01",
        "info": {
            "git_commit": "abc",
            "num_trials": 2,
            "max_steps": 200,
            "max_errors": 10,
            "user_info": {"implementation": "user_simulator", "llm": "gpt-user"},
            "agent_info": {"implementation": "llm_agent", "llm": "gpt-agent"},
            "environment_info": {"domain_name": domain, "policy": "", "tool_defs": None},
            "seed": 300,
        },
        "tasks": [dumped(task) for task in tasks],
        "simulations": runs,
    }
    path.write_text(json.dumps(value))
    return path


def airline(count: int, task_set: str = "v1.0") -> list[Tau2Task]:
    """Tasks that doing nothing fails, and whose reference has no more calls than errors allow."""
    found = [task for task in load_tasks("airline", "base", task_set) if _acts(task)]
    return found[:count]


def _acts(task: Tau2Task) -> bool:
    return flags(task).noop_reward == 0 and not flags(task).failing_calls


def test_a_file_of_the_package_is_graded_as_it_was_and_names_who_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = airline(2)
    runs = [simulation(one, 0, 1.0), simulation(one, 1, 0.0), simulation(two, 0, 1.0)]
    runs.append(simulation(two, 1, 1.0))
    file = results(tmp_path / "airline.json", "airline", [one, two], runs)
    folder = tmp_path / "run"
    assert evaluate(["--rescore", str(file), "--run-dir", str(folder)]) == 0
    data = summary(folder)
    found = {measure["name"]: measure["estimate"]["mean"] for measure in data["measures"]}
    assert (found["pass^1"], found["pass^2"]) == (0.75, 0.5)
    assert [row["task_id"] for row in rows(folder)][0] == f"tau2-airline/v1.0/{one.id}"
    assert "right, now right 3; wrong, now wrong 1" in capsys.readouterr().out
    claim = " ".join(data["claim"])
    for words in ("gpt-agent (llm_agent)", "gpt-user (user_simulator)", "tasks v1.0", "seed 300"):
        assert words in claim


@pytest.mark.parametrize("task_set", ["v1.0", "26.3"])
def test_the_version_of_the_tasks_is_found_by_what_they_say(tmp_path: Path, task_set: str) -> None:
    task = airline(1, task_set)[0]
    file = results(tmp_path / "a.json", "airline", [task], [simulation(task, 0, 1.0)])
    assert evaluate(["--rescore", str(file), "--run-dir", str(tmp_path / "run")]) == 0
    assert rows(tmp_path / "run")[0]["task_id"] == f"tau2-airline/{task_set}/{task.id}"


def test_a_task_that_is_nobodys_keeps_its_own_criteria(tmp_path: Path) -> None:
    task = airline(1)[0]
    criteria = {**task.raw["evaluation_criteria"], "communicate_info": ["quince"]}
    raw = {**task.raw, "evaluation_criteria": criteria}
    file = results(tmp_path / "a.json", "airline", [task], [simulation(task, 0, 1.0)])
    value = json.loads(file.read_text())
    file.write_text(json.dumps({**value, "tasks": [raw]}))
    assert evaluate(["--rescore", str(file), "--run-dir", str(tmp_path / "run")]) == 0
    (row,) = rows(tmp_path / "run")
    assert (row["task_id"], row["score"]) == (f"tau2-airline/file/{task.id}", 0.0)


@pytest.mark.parametrize(
    ("reason", "ending", "score"),
    [
        ("max_steps", "stopped", 0.0),
        ("too_many_errors", "stopped", 0.0),
        ("agent_error", "stopped", 0.0),
        ("user_error", "lost", None),
        ("infrastructure_error", "lost", None),
    ],
)
def test_what_is_not_the_agents_doing_leaves_the_denominator(
    tmp_path: Path, reason: str, ending: str, score: float | None
) -> None:
    task = airline(1)[0]
    runs = [simulation(task, 0, 1.0), simulation(task, 1, 0.0, termination_reason=reason)]
    file = results(tmp_path / "a.json", "airline", [task], runs)
    assert evaluate(["--rescore", str(file), "--run-dir", str(tmp_path / "run")]) == 0
    row = rows(tmp_path / "run")[1]
    assert (row["kind"], row["score"]) == (ending, score)
    assert summary(tmp_path / "run")["coverage"] == (0.5 if score is None else 1.0)


def test_a_recorded_result_that_no_call_gives_is_lost_and_not_0(tmp_path: Path) -> None:
    task = airline(1)[0]
    good, bad = simulation(task, 0, 1.0), simulation(task, 1, 1.0)
    answer = next(one for one in bad["messages"] if one["role"] == "tool")
    answer["content"] = "made up"
    file = results(tmp_path / "a.json", "airline", [task], [good, bad])
    assert evaluate(["--rescore", str(file), "--run-dir", str(tmp_path / "run")]) == 0
    row = rows(tmp_path / "run")[1]
    assert (row["score"], row["boundary"]) == (None, "environment")
    assert "recorded is 'made up'" in row["error"]


def judged() -> Tau2Task:
    return next(
        task
        for task in load_tasks("retail", "base", "v1.0")
        if task.criteria and task.criteria.nl_assertions and task.criteria.actions
    )


def test_without_a_judge_what_hangs_on_it_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = judged()
    runs = [simulation(task, 0, 1.0), simulation(task, 1, 0.0)]
    file = results(tmp_path / "r.json", "retail", [task], runs)
    assert evaluate(["--rescore", str(file), "--run-dir", str(tmp_path / "run")]) == 0
    found = rows(tmp_path / "run")
    assert [(row["score"], row["boundary"]) for row in found] == [(None, "judge"), (0.0, None)]
    met = ["--nl-assertions", "met", "--run-dir", str(tmp_path / "met")]
    assert evaluate(["--rescore", str(file), *met]) == 0
    assert [row["score"] for row in rows(tmp_path / "met")] == [1.0, 0.0]
    assert "NL assertions: taken as met" in " ".join(summary(tmp_path / "met")["claim"])


@pytest.mark.parametrize(
    ("reply", "score"), [("Verdict: true", 1.0), ("Verdict: false", 0.0), ("Hm.", None)]
)
def test_a_judge_tells_and_is_unknown_where_it_does_not(
    tmp_path: Path, reply: str, score: float | None
) -> None:
    task = judged()
    runs = [simulation(task, 0, 1.0), simulation(task, 1, 0.0)]
    file = results(tmp_path / "r.json", "retail", [task], runs)
    with serving(lambda messages: reply) as url:
        judge = ["--judge.base-url", url, "--judge.model", "m", "--run-dir", str(tmp_path / "run")]
        assert evaluate(["--rescore", str(file), *judge]) == 0
    assert [row["score"] for row in rows(tmp_path / "run")] == [score, 0.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: [], "expected an object with info, tasks and simulations"),
        (lambda value: {**value, "info": {}}, "KeyError: 'environment_info'"),
        (
            lambda value: {**value, "simulations": [{**value["simulations"][0], "task_id": "77"}]},
            "simulations[0]: task_id '77' is not among",
        ),
        (
            lambda value: {
                **value,
                "simulations": [{**value["simulations"][0], "termination_reason": "bored"}],
            },
            "termination_reason: unknown 'bored'",
        ),
        (
            lambda value: {
                **value,
                "simulations": [{**value["simulations"][0], "reward_info": {"reward": "1"}}],
            },
            "reward: expected a number",
        ),
        (
            lambda value: {**value, "tasks": [{"id": "1"}]},
            "is not a τ²-bench task",
        ),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, words: str
) -> None:
    task = task_by_id("airline", "0")
    file = results(tmp_path / "a.json", "airline", [task], [simulation(task, 0, 1.0)])
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    assert evaluate(["--rescore", str(file), "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert str(file) in error and words in error

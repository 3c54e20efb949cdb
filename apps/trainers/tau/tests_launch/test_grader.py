"""The line of `check` on the grader."""

from dataclasses import replace

import pytest
from taubench import Environment, TaskFlags, load_tasks

from apps.trainers.tau.checks import check_grader


def test_a_grader_that_does_not_pay_the_ground_truth_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = load_tasks("retail", "dev")
    assert check_grader(tasks).verdict == "ok"
    monkeypatch.setattr(Environment, "step", lambda self, action: None)
    line = check_grader(tasks)
    assert line.verdict == "FAIL"
    assert "gives its ground truth 0.0" in line.found


def test_a_grader_that_pays_for_nothing_is_found() -> None:
    task = load_tasks("retail", "dev")[0]
    line = check_grader([replace(task, flags=TaskFlags(noop_reward=1.0))])
    assert line.verdict == "FAIL"
    assert line.found == "retail/dev/0 gives nothing 0.0, its flag says 1.0"

"""Thread counts are measured; waiting threads are told not to spin in time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from turnwise.local.threads import available_cores, choose_threads, pick, wait_passively


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({}, 1),
        ({1: 1.0}, 1),
        ({1: 1.0, 2: 0.95}, 1),
        ({1: 1.0, 2: 0.6}, 2),
        ({1: 1.0, 2: 6.0}, 1),
        ({1: 1.0, 2: 0.6, 4: 0.58}, 2),
        ({1: 1.0, 2: 1.2, 4: 0.5}, 4),
    ],
)
def test_more_threads_are_taken_where_they_pay(seconds: dict[int, float], best: int) -> None:
    assert pick(seconds) == best


def test_the_choice_is_measured_and_leaves_no_gradient(make_policy: Callable[..., Any]) -> None:
    model = make_policy()
    choice = choose_threads(model, most=2)
    assert choice.threads in (1, 2)
    assert torch.get_num_threads() == choice.threads
    assert set(choice.seconds) <= {1, 2}
    assert choice.seconds[1] > 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_only_available_cores_are_counted() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    kept["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


SET_AND_SHOW = (
    "import os, sys; from turnwise.local.threads import wait_passively; wait_passively();"
    "assert 'torch' not in sys.modules; print(os.environ['OMP_WAIT_POLICY'])"
)


def test_waiting_is_passive_unless_the_environment_says_otherwise() -> None:
    assert run_python(SET_AND_SHOW).stdout.strip() == "passive"
    assert run_python(SET_AND_SHOW, OMP_WAIT_POLICY="active").stdout.strip() == "active"


def test_too_late_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with pytest.raises(RuntimeError, match="after torch was imported"):
        wait_passively()

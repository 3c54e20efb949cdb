"""What trackers are sent, and what a run does where they fail."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from turnwise.config import ConfigError
from turnwise.run import trackers as module
from turnwise.run.folder import RunFolder
from turnwise.run.trackers import Trackers, numbers_of, require_packages


class Remembering:
    """A tracker that fails at a step."""

    def __init__(self, fails_at: int = 0) -> None:
        self.fails_at, self.seen, self.closed = fails_at, [], False
        self.seen: list[tuple[int, dict[str, float]]]

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise ConnectionError("nobody\nanswers")
        self.seen.append((step, dict(numbers)))

    def close(self) -> None:
        self.closed = True


def started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Any, said: list[str]
) -> Trackers:
    monkeypatch.setattr(module, "OPENERS", {"wandb": lambda *_: found()})
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    return Trackers(["wandb"], folder=folder, method="tau", config={}, say=said.append)


def row(step: int) -> dict[str, Any]:
    return {"step": step, "kind": "train", "loss": 0.5}


def test_numbers_have_the_kind_before_their_name_and_what_is_no_number_is_left_out() -> None:
    given = {
        "step": 3,
        "kind": "eval",
        "reward_mean": 0.5,
        "reward_stderr": None,
        "coverage": float("nan"),
        "resumed": True,
        "metrics": {"turns": {"mean": 2.0, "episodes": 4}},
        "ledger": {"started": 2, "stopped": {"turns": 1}},
        "scores": {"task": [1.0]},
        "services": {"user": "offline"},
    }
    assert numbers_of(given) == {
        "eval/reward_mean": 0.5,
        "eval/metrics/turns": 2.0,
        "eval/ledger/started": 2.0,
        "eval/ledger/stopped/turns": 1.0,
    }


def test_a_tracker_that_fails_is_said_once_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    tracker = Remembering(fails_at=2)
    trackers = started(tmp_path, monkeypatch, lambda: tracker, said)
    for step in (1, 2, 3):
        trackers.log(row(step))
    trackers.close()
    assert tracker.seen == [(1, {"train/loss": 0.5})]
    assert len(said) == 1 and "wandb is left out" in said[0]
    assert "ConnectionError: nobody answers" in said[0]


def test_a_tracker_that_does_not_open_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> Remembering:
        raise RuntimeError("no account")

    said: list[str] = []
    trackers = started(tmp_path, monkeypatch, fails, said)
    trackers.log(row(1))
    trackers.close()
    assert [line for line in said if "no account" in line] == said and len(said) == 1


def test_a_tracker_that_hangs_holds_up_neither_a_row_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    class Hanging(Remembering):
        def log(self, step: int, numbers: Mapping[str, float]) -> None:
            go.wait(60)

    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    said: list[str] = []
    trackers = started(tmp_path, monkeypatch, Hanging, said)
    trackers.log(row(1))
    trackers.close()
    assert said == ["tracker wandb does not end; what it was sent may be incomplete"]
    go.set()


def test_a_tracker_that_is_not_installed_is_refused_with_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="--track mlflow: .* pip install mlflow-skinny"):
        require_packages(["mlflow"])

"""Finished trials on disk: none twice, none lost, broken lines named."""

from pathlib import Path

import pytest
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit
from turnwise.evaluation.estimates import Attempt
from turnwise.evaluation.journal import (
    Journal,
    TrialRow,
    account,
    by_task,
    rollout_id,
    split_rollout_id,
    totals,
    trial_row,
)
from turnwise.trials import TrialError


def row(task: str, trial: int, ending: Ending, score: float | None) -> TrialRow:
    played = Episode(
        rollout_id(task, trial), task, task, (), ending, score, [], metrics={"turns": 2.0}
    )
    return trial_row(played)


def open_journal(folder: Path) -> Journal:
    return Journal(folder / "trials.jsonl")


LOST = Ending.lost(BoundaryError(Boundary.USER, "429"))


def test_trials_come_back_as_they_were(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(row("retail/test/1", 0, Ending.finished(), 1.0))
    journal.append(row("retail/test/1", 1, Ending.stopped(Limit.TURNS), 0.0))
    journal.append(row("retail/test/2", 0, LOST, None))
    rows = journal.rows()
    assert by_task(rows[:2], ["retail/test/1"], 2) == {
        "retail/test/1": [Attempt(1.0), Attempt(0.0)]
    }
    with pytest.raises(TrialError, match="1 of 4 trials are missing, first trial 1 of task retai"):
        by_task(rows, ["retail/test/1", "retail/test/2"], 2)
    assert [row.ending.label for row in rows] == ["finished", "stopped:turns", "lost:user"]
    assert journal.scored() == {("retail/test/1", 0), ("retail/test/1", 1)}


def test_a_lost_trial_that_was_played_again_counts_once(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(row("t", 0, LOST, None))
    journal.append(row("t", 0, Ending.finished(), 1.0))
    assert by_task(journal.rows(), ["t"], 1) == {"t": [Attempt(1.0)]}
    assert [row.ending.label for row in journal.attempts()] == ["lost:user", "finished"]
    ledger = account(journal.attempts())
    assert ledger.as_dict() == {
        "started": 2, "finished": 1, "stopped": {}, "lost": {"user": 1}, "cancelled": 0
    }  # fmt: skip
    assert totals(journal.attempts()) == {"turns": 4.0}


def test_a_scored_trial_that_stands_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for _ in range(2):
        journal.append(row("t", 0, Ending.finished(), 1.0))
    with pytest.raises(ConfigError, match="trials.jsonl:2: trial 0 of task t stands twice"):
        journal.rows()


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"task_id": "t"}',
        '{"task_id": "t", "trial": 0, "score": 1.0, "kind": "exploded"}',
        '{"task_id": "t", "trial": 0, "score": 0.0, "kind": "lost", "boundary": "user"}',
        '{"task_id": "t", "trial": 0, "score": NaN, "kind": "finished"}',
        '{"task_id": "t", "trial": "0", "score": 1.0, "kind": "finished"}',
        '{"task_id": "t", "trial": 0, "score": true, "kind": "finished"}',
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match="trials.jsonl:1"):
        Journal(path).rows()


def test_a_task_id_may_hold_the_separator() -> None:
    assert split_rollout_id(rollout_id("a#b", 3)) == ("a#b", 3)

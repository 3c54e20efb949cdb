"""Finished trials on disk: `trials.jsonl`, one row each, in the order in which they ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from turnwise.config import ConfigError
from turnwise.episode import Boundary, Ending, Episode, Limit, as_score
from turnwise.evaluation.estimates import Attempt, Table
from turnwise.ledger import Ledger
from turnwise.run.jsonl import append_rows, read_rows
from turnwise.stopping import first_prompt
from turnwise.trials import Trial
from turnwise.trials import by_task as scores_by_task


class TrialRow(msgspec.Struct, frozen=True, kw_only=True):
    """One trial.

    Attributes:
        task_id, trial: Which one; trials of a task are counted from 0.
        score: None where the trial was lost.
        kind, limit, boundary, error: Those of `turnwise.episode.Ending`.
        metrics: `Episode.metrics`.
        output: The final text that was graded; where the method's own reward is the score, what
            the benchmark keeps for grading it again, else None.
        vote: The answer in a normal form, by which equal answers are found; None without one.
        by: What decided the grade, for counting.
        info: What else the grader says.
        first_prompt: `needed` and `limit` in tokens, where the first prompt did not fit the context
            and nothing was sampled.
    """

    task_id: str
    trial: int
    score: float | None
    kind: str
    limit: Limit | None = None
    boundary: Boundary | None = None
    error: str | None = None
    wall_s: float = 0.0
    metrics: dict[str, float | None] = {}
    output: str | None = None
    vote: str | None = None
    by: str = ""
    info: dict[str, Any] = {}
    first_prompt: dict[str, int] | None = None

    def __post_init__(self) -> None:
        if self.score is not None:
            as_score(self.score)
        if (self.score is not None) != self.ending.by_policy:
            raise ValueError(f"score {self.score!r} with ending {self.ending.label!r}")

    @property
    def ending(self) -> Ending:
        """How the trial ended. Raises ValueError where the row contradicts itself."""
        return Ending(self.kind, self.limit, self.boundary, self.error)


def trial_row(episode: Episode, **graded: Any) -> TrialRow:
    """The row of an episode, whose rollout id is of `rollout_id`; `graded` is what graded it."""
    task_id, trial = split_rollout_id(episode.rollout_id)
    return TrialRow(
        task_id=task_id,
        trial=trial,
        score=episode.score,
        kind=episode.ending.kind,
        limit=episode.ending.limit,
        boundary=episode.ending.boundary,
        error=episode.ending.error,
        wall_s=round(episode.wall_s, 4),
        metrics=dict(episode.metrics),
        first_prompt=first_prompt(episode),
        **graded,
    )


@dataclass(frozen=True, slots=True)
class Journal:
    """The trials of one evaluation."""

    path: Path

    def append(self, *rows: TrialRow) -> None:
        """Adds rows, flushed to the system."""
        append_rows(self.path, (msgspec.to_builtins(row) for row in rows))

    def rows(self) -> list[TrialRow]:
        """What stands for each trial: its last row, in the order of first appearance.

        Raises:
            ConfigError: as `attempts`.
        """
        return list({(row.task_id, row.trial): row for row in self.attempts()}.values())

    def attempts(self) -> list[TrialRow]:
        """Every row. A trial has several only where it was lost and played again.

        Raises:
            ConfigError: naming file and line of a broken row, or of a second row of a scored trial.
        """
        rows: list[TrialRow] = []
        scored: set[tuple[str, int]] = set()
        for number, data in enumerate(read_rows(self.path), start=1):
            try:
                row = msgspec.convert(data, TrialRow)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{self.path}:{number}: not a trial: {error}") from None
            if (row.task_id, row.trial) in scored:
                raise ConfigError(
                    f"{self.path}:{number}: trial {row.trial} of task {row.task_id} stands twice;"
                    " remove one of the two lines"
                )
            rows.append(row)
            if row.score is not None:
                scored.add((row.task_id, row.trial))
        return rows

    def scored(self) -> set[tuple[str, int]]:
        """Task and number of the trials that need not be played again. Raises as `attempts`."""
        return {(row.task_id, row.trial) for row in self.rows() if row.score is not None}


def account(attempts: Iterable[TrialRow]) -> Ledger:
    """The ledger of all rows, lost ones that were played again included; it balances."""
    ledger = Ledger()
    for number, row in enumerate(attempts):
        name = f"{rollout_id(row.task_id, row.trial)}/{number}"
        ledger.start(name)
        ledger.settle(
            Episode(
                rollout_id=name,
                group_id=row.task_id,
                task_id=row.task_id,
                segments=(),
                ending=row.ending,
                score=row.score,
                transcript=(),
                wall_s=row.wall_s,
            )
        )
    ledger.check()
    return ledger


def by_task(rows: Sequence[TrialRow], task_ids: Sequence[str], n_trials: int) -> Table:
    """Rows as `{task: [trial 0, trial 1, ...]}`, complete and in order.

    Args:
        rows: What stands for each trial (`Journal.rows`).

    Raises:
        TrialError: see `turnwise.trials.by_task`.
    """
    votes = {(row.task_id, row.trial): row.vote for row in rows}
    trials = (Trial(row.task_id, row.trial, row.score) for row in rows)
    return {
        name: [Attempt(score, votes[name, n]) for n, score in enumerate(scores)]
        for name, scores in scores_by_task(trials, task_ids, n_trials).items()
    }


def totals(attempts: Iterable[TrialRow]) -> dict[str, float]:
    """Sums of the episodes' numbers, by name."""
    found: dict[str, float] = {}
    for row in attempts:
        metrics: Mapping[str, float | None] = row.metrics
        for name, value in metrics.items():
            if value is not None:
                found[name] = found.get(name, 0.0) + value
    return found


def rollout_id(task_id: str, trial: int) -> str:
    """The name of a trial's episode."""
    return f"{task_id}#{trial}"


def split_rollout_id(name: str) -> tuple[str, int]:
    """Task and number of the trial."""
    task_id, _, trial = name.rpartition("#")
    return task_id, int(trial)

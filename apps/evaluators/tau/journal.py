"""Finished trials on disk: `trials.jsonl`, one row each, in the order in which they ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from turnwise.config import ConfigError
from turnwise.episode import Boundary, Ending, Episode, Limit
from turnwise.run.jsonl import append_row, read_rows
from turnwise.trials import Trial


class TrialRow(msgspec.Struct, frozen=True, kw_only=True):
    """One trial.

    Attributes:
        kind, limit, boundary, error: Those of `turnwise.episode.Ending`.
        score: None where the trial was lost.
        metrics: `Episode.metrics`.
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

    def __post_init__(self) -> None:
        if (self.score is not None) != self.ending.by_policy:
            raise ValueError(f"score {self.score!r} with ending {self.ending.label!r}")

    @property
    def ending(self) -> Ending:
        """How the trial ended. Raises ValueError where the row contradicts itself."""
        return Ending(self.kind, self.limit, self.boundary, self.error)


@dataclass(frozen=True, slots=True)
class Journal:
    """The trials of one evaluation."""

    path: Path

    def append(self, episode: Episode) -> None:
        """Adds the episode of a trial; its rollout id is `rollout_id(task, trial)`."""
        task_id, trial = split_rollout_id(episode.rollout_id)
        row = TrialRow(
            task_id=task_id,
            trial=trial,
            score=episode.score,
            kind=episode.ending.kind,
            limit=episode.ending.limit,
            boundary=episode.ending.boundary,
            error=episode.ending.error,
            wall_s=round(episode.wall_s, 4),
            metrics=dict(episode.metrics),
        )
        append_row(self.path, msgspec.to_builtins(row))

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


def rollout_id(task_id: str, trial: int) -> str:
    return f"{task_id}#{trial}"


def split_rollout_id(name: str) -> tuple[str, int]:
    task_id, _, trial = name.rpartition("#")
    return task_id, int(trial)


def as_trials(rows: Iterable[TrialRow]) -> list[Trial]:
    return [Trial(row.task_id, row.trial, row.score) for row in rows]


def as_episode(row: TrialRow, attempt: int) -> Episode:
    """A row as an episode without tokens, for the ledger; `attempt` tells rows of a trial apart."""
    return Episode(
        rollout_id=f"{rollout_id(row.task_id, row.trial)}/{attempt}",
        group_id=row.task_id,
        task_id=row.task_id,
        segments=(),
        ending=row.ending,
        score=row.score,
        transcript=(),
        wall_s=row.wall_s,
    )

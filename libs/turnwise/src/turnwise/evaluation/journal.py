"""Finished trials on disk: `trials.jsonl`, one row each, in the order in which they ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from turnwise.config import ConfigError
from turnwise.episode import Boundary, Ending, Episode, Limit
from turnwise.ledger import Ledger
from turnwise.run.jsonl import append_row, read_rows
from turnwise.trials import Trial


class TrialRow(msgspec.Struct, frozen=True, kw_only=True):
    """One trial. A benchmark may add fields of its own in a subclass.

    Attributes:
        task_id, trial: Which one; trials of a task are counted from 0.
        score: None where the trial was lost.
        kind, limit, boundary, error: Those of `turnwise.episode.Ending`.
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


RowT = TypeVar("RowT", bound=TrialRow)


def fields_of(episode: Episode) -> dict[str, Any]:
    """The fields of a `TrialRow` that an episode fills; its rollout id is `rollout_id(...)`."""
    task_id, trial = split_rollout_id(episode.rollout_id)
    return {
        "task_id": task_id,
        "trial": trial,
        "score": episode.score,
        "kind": episode.ending.kind,
        "limit": episode.ending.limit,
        "boundary": episode.ending.boundary,
        "error": episode.ending.error,
        "wall_s": round(episode.wall_s, 4),
        "metrics": dict(episode.metrics),
    }


@dataclass(frozen=True, slots=True)
class Journal(Generic[RowT]):
    """The trials of one evaluation."""

    path: Path
    row: type[RowT]

    def append(self, row: RowT) -> None:
        """Adds a row, flushed to the system."""
        append_row(self.path, msgspec.to_builtins(row))

    def rows(self) -> list[RowT]:
        """What stands for each trial: its last row, in the order of first appearance.

        Raises:
            ConfigError: as `attempts`.
        """
        return list({(row.task_id, row.trial): row for row in self.attempts()}.values())

    def attempts(self) -> list[RowT]:
        """Every row. A trial has several only where it was lost and played again.

        Raises:
            ConfigError: naming file and line of a broken row, or of a second row of a scored trial.
        """
        rows: list[RowT] = []
        scored: set[tuple[str, int]] = set()
        for number, data in enumerate(read_rows(self.path), start=1):
            try:
                row = msgspec.convert(data, self.row)
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


def as_trials(rows: Iterable[TrialRow]) -> list[Trial]:
    """Rows as `turnwise.trials.by_task` takes them."""
    return [Trial(row.task_id, row.trial, row.score) for row in rows]


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

"""Two evaluations of the same tasks, the second against the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from turnwise.config import ConfigError
from turnwise.evaluation.estimates import (
    DRAWS,
    Difference,
    Table,
    as_attempts,
    avg_at_k,
    paired_bootstrap,
)
from turnwise.evaluation.folder import EvalFolder
from turnwise.evaluation.tasks import ALL, TASKS, TaskRow, parts, read_tasks
from turnwise.run.folder import RunFolder, write_whole
from turnwise.run.jsonl import dump
from turnwise.run.metrics import EvalRow, parse_row
from turnwise.run.progress import number
from turnwise.run.summary import SummaryTable, percent
from turnwise.trials import TrialError

LIKE_FOR_LIKE = ("temperature", "top_p", "max_response_len", "max_context_len")
"""Options that have to be equal for a difference to mean what it says."""


@dataclass(frozen=True, slots=True)
class Other:
    """The evaluation that another one is compared with.

    Attributes:
        name, path: Of its folder.
        config: As it was started.
        scores: Of each task by its key.
        row: The evaluation as metrics.jsonl has it, tasks by their keys.
    """

    name: str
    path: Path
    config: Mapping[str, Any]
    scores: Table
    row: EvalRow

    @property
    def players(self) -> Mapping[str, str]:
        """Who took part beside the policy, by role."""
        return self.row.services


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What changed from `before` to `after`.

    Attributes:
        before, after: Folders' names.
        scores: The mean scores of both on each part, as text with its error.
        differences: By part, with `all` where there are several.
        unlike: Settings that are not the same, in words.
        draws: Bootstrap samples.
    """

    kind: str = "comparison"
    before: str
    after: str
    scores: dict[str, tuple[str, str]]
    differences: dict[str, Difference]
    unlike: tuple[str, ...]
    draws: int = DRAWS

    @property
    def main(self) -> Difference:
        """Over all tasks."""
        return self.differences.get(ALL) or next(iter(self.differences.values()))

    def verdict(self) -> str:
        """For people."""
        said = f"Against {self.before}: {self.main}."
        unlike = "; ".join(self.unlike)
        return f"Not like for like: {unlike}. {said}" if unlike else said

    def table(self) -> SummaryTable:
        """The differences by part."""
        head = (
            "", self.before, self.after, "points", "standard error", "95 %", "p",
            "lost against or for it", "tasks",
        )  # fmt: skip
        rows = tuple(
            (
                name or "score",
                *self.scores[name],
                number(100 * found.mean, "+.1f"),
                number(100 * found.stderr, ".1f"),
                f"{number(100 * found.low, '+.1f')} to {number(100 * found.high, '+.1f')}",
                number(found.p_value, ".2g"),
                f"{100 * found.worst:+.1f} to {100 * found.best:+.1f}",
                f"{found.tasks}",
            )
            for name, found in self.differences.items()
        )
        before = (
            f"In points of the mean score, by {self.draws:,} draws of a paired bootstrap: the"
            " interval is for other tasks of this kind. p is the chance of as large a difference"
            " where each task's had a sign by lot.",
            *(f"Not the same on both sides: {sentence}." for sentence in self.unlike),
        )
        return SummaryTable(
            title=f"The difference from {self.before}", before=before, head=head, rows=rows
        )


def read_other(path: Path, flag: str) -> Other:
    """The last evaluation of a run, also of a training, with its scores.

    Raises:
        ConfigError: naming the flag, the folder has none or a file in it is broken.
    """
    folder = RunFolder.open(path)
    rows = [row for row in folder.metric_rows() if row.get("kind") == "eval"]
    if not rows:
        raise ConfigError(f"{flag} {path}: no evaluation in it has ended; go on with --resume")
    try:
        row = parse_row(rows[-1])
    except ValueError as error:
        raise ConfigError(f"{folder.metrics}: {error}") from None
    assert isinstance(row, EvalRow)
    scores = as_attempts(row.scores)
    if (path / TASKS).is_file():
        keys = {task.id: task.key for task in read_tasks(path)}
        if odd := sorted(keys.keys() ^ scores.keys()):
            raise ConfigError(f"{flag} {path}: task {odd[0]} is in one of its files alone")
        scores = {keys[name]: found for name, found in scores.items()}
        row = msgspec.structs.replace(
            row,
            compared={
                name: {keys[task]: values for task, values in numbers.items()}
                for name, numbers in row.compared.items()
            },
        )
    return Other(path.resolve().name, path, folder.read_config(), scores, row)


def check_same_tasks(other: Other, tasks: Sequence[TaskRow]) -> None:
    """Raises ConfigError if the other evaluation is not of these tasks."""
    if odd := {task.key for task in tasks} ^ other.scores.keys():
        first = next((task.id for task in tasks if task.key in odd), min(odd))
        raise ConfigError(
            f"{other.path} is not of the same tasks: {len(odd)} are in one of the two runs alone,"
            f" first {first}"
        )


def compare(
    other: Other,
    name: str,
    config: Mapping[str, Any],
    tasks: Sequence[TaskRow],
    table: Table,
    *,
    players: Mapping[str, str],
    seed: int,
) -> Comparison:
    """This evaluation against the other one.

    Args:
        name, config: Of this one.
        table: Its trials, by the tasks' names.
        players: Who took part in it beside the policy, by role.

    Raises:
        ConfigError: the two are not of the same tasks.
    """
    check_same_tasks(other, tasks)
    keys = {task.id: task.key for task in tasks}
    scores, differences = {}, {}
    for part, names in parts(tasks).items():
        old = {keys[task]: other.scores[keys[task]] for task in names}
        new = {keys[task]: table[task] for task in names}
        scores[part] = (percent(avg_at_k(old).estimate), percent(avg_at_k(new).estimate))
        try:
            differences[part] = paired_bootstrap(old, new, seed=seed)
        except TrialError as error:
            raise ConfigError(f"{other.path}: {error}") from None
    return Comparison(
        before=other.name,
        after=name,
        scores=scores,
        differences=differences,
        unlike=(
            *(
                f"--{option.replace('_', '-')} {other.config[option]} and {config[option]}"
                for option in LIKE_FOR_LIKE
                if option in other.config and option in config
                if other.config[option] != config[option]
            ),
            *(
                f"{role} {other.players[role]} and {player}"
                for role, player in players.items()
                if other.players.get(role, player) != player
            ),
        ),
    )


def write_comparison(folder: EvalFolder, comparison: Comparison) -> None:
    """Writes comparison.json whole or not at all."""
    row = {**msgspec.to_builtins(comparison), "verdict": comparison.verdict()}
    write_whole(folder.run.path / "comparison.json", dump(row, indent=1) + "\n")

"""Attempts on disk: `trials.jsonl`, one row each with the whole output, as they end.

With `problems.jsonl` beside it a folder can be scored again, and compared with another, without a
model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from turnwise.config import ConfigError
from turnwise.evaluation.estimates import Attempt
from turnwise.evaluation.journal import Journal, TrialRow
from turnwise.run.folder import write_whole
from turnwise.run.jsonl import dump, read_rows

from apps.evaluators.aime.problems import Problem

TRIALS = "trials.jsonl"
PROBLEMS = "problems.jsonl"


class AttemptRow(TrialRow, frozen=True, kw_only=True):
    """One attempt at one problem, whose `Problem.id` is its `task_id`.

    Attributes:
        label: The right answer.
        output: What is graded: the final text.
        prediction: The answer that was found in it; None if there is none.
        vote: Its normal form, by which answers are counted.
        by: What graded it (`apps.evaluators.aime.grading`).
    """

    label: str
    output: str
    prediction: str | None
    vote: str | None
    by: str


def open_journal(folder: Path) -> Journal[AttemptRow]:
    """The attempts in a run folder; none yet where it has no such file."""
    return Journal(folder / TRIALS, AttemptRow)


def write_problems(folder: Path, problems: Sequence[Problem]) -> None:
    """Writes problems.jsonl whole or not at all."""
    rows = [
        {"data": p.data, "index": p.index, "question": p.question, "label": p.label}
        for p in problems
    ]
    write_whole(folder / PROBLEMS, "".join(f"{dump(row)}\n" for row in rows))


def read_problems(folder: Path) -> list[Problem]:
    """The problems of an evaluation.

    Raises:
        ConfigError: if the folder has none, or naming the line that is broken.
    """
    path = folder / PROBLEMS
    if not path.is_file():
        raise ConfigError(f"{folder}: not the folder of an evaluation: it has no {PROBLEMS}")
    problems = []
    for number, row in enumerate(read_rows(path), start=1):
        try:
            problems.append(msgspec.convert(row, Problem))
        except msgspec.ValidationError as error:
            raise ConfigError(f"{path}:{number}: not a problem: {error}") from None
    return problems


def by_problem(
    rows: Iterable[AttemptRow], problems: Sequence[Problem], k: int
) -> dict[str, list[Attempt]]:
    """Rows as `{problem id: k attempts}`, complete and in order.

    Raises:
        ConfigError: on a missing or an unexpected attempt; names the first of each.
    """
    found: dict[str, dict[int, Attempt]] = {problem.id: {} for problem in problems}
    for row in rows:
        if row.task_id not in found or not 0 <= row.trial < k:
            raise ConfigError(f"attempt {row.trial} at {row.task_id} does not belong here")
        found[row.task_id][row.trial] = Attempt(row.score, row.vote)
    missing = [(name, n) for name, row in found.items() for n in range(k) if n not in row]
    if missing:
        name, n = missing[0]
        raise ConfigError(
            f"{len(missing)} of {len(found) * k} attempts are missing, first attempt {n} at {name};"
            " go on with --resume"
        )
    return {name: [row[n] for n in range(k)] for name, row in found.items()}

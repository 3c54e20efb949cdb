"""Saved outputs of evaluations: our own folders and journals, and files of scored records.

A record is `{"question", "prediction", "label", "score", "output"}`, as AgentFlow's evaluation
files have it; `question` and `label` are needed, and one of `output` and `prediction`. What the
evaluation scripts of MemAgent write, `{"input", "answers", "response", "pred", "judge_sub_em"}`, is
read as such a record. A file is
JSON lines or one JSON value. A list of records is a run; a file that holds several lists, or
records with several `rollout_id`s, holds several runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError
from turnwise.episode import Boundary, Ending, Limit, as_score
from turnwise.evaluation.folder import EvalFolder
from turnwise.evaluation.options import MAX_TRIALS
from turnwise.evaluation.tasks import TASKS
from turnwise.rows.checks import check_label, check_text
from turnwise.run.jsonl import parse_line, read_lines

RUN_KEY = "rollout_id"
TRIALS = "trials.jsonl"


@dataclass(frozen=True, slots=True)
class Saved:
    """One saved output.

    Attributes:
        question, label: What was asked and what is right; the label is any JSON value.
        output: The final text; the prediction as a boxed answer where only that was saved.
        score: As saved; None where there was none.
        ending: How the attempt ended; finished where the file does not say.
        where: For errors.
        trial: Which one of its question; None where that was not saved.
    """

    question: str
    label: Any
    output: str
    score: float | None
    ending: Ending
    where: str
    trial: int | None = None


@dataclass(frozen=True, slots=True)
class SavedRun:
    """The outputs of one run, in order.

    Attributes:
        facts: What is known of it, one sentence each.
    """

    name: str
    outputs: Sequence[Saved]
    facts: tuple[str, ...] = ()


def read_saved(path: Path) -> list[SavedRun]:
    """The runs that a folder or file holds.

    Raises:
        ConfigError: naming file and place, what was found and what is expected.
    """
    if path.name == TRIALS and path.with_name(TASKS).is_file():
        path = path.parent
    if path.is_dir():
        return [_own_folder(path)]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--rescore {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = [parse_line(path, n, line) for n, line in enumerate(read_lines(path), 1)]
    runs = list(_runs(value, path, ""))
    if not runs:
        raise ConfigError(
            f"{path}: holds no record; expected objects with question, label and output"
        )
    return runs


def _own_folder(path: Path) -> SavedRun:
    folder = EvalFolder.open(path)
    tasks = {task.id: task for task in folder.tasks}
    outputs = []
    for number, row in enumerate(folder.journal.rows(), start=1):
        where = f"{folder.journal.path}: trial {number}"
        if row.task_id not in tasks:
            raise ConfigError(f"{where}: {row.task_id} is not one of its tasks")
        if row.output is None and row.score is not None:
            raise ConfigError(f"{where}: its output was not saved; the score is the method's own")
        task = tasks[row.task_id]
        outputs.append(
            Saved(
                question=task.question,
                label=task.label,
                output=row.output or "",
                score=row.score,
                ending=row.ending,
                where=where,
                trial=_trial(row.trial, where),
            )
        )
    if not outputs:
        raise ConfigError(f"{folder.journal.path}: holds no trial")
    return SavedRun(path.resolve().name, outputs)


def _as_record(value: Any) -> Any:
    """A row of MemAgent's scripts as a record; anything else as it is."""
    if not isinstance(value, dict) or not {"input", "answers"} <= set(value):
        return value
    if not {"response", "pred"} & set(value):
        return value
    found = {
        "question": value["input"],
        "label": value["answers"],
        "score": value.get("judge_sub_em"),
    }
    if "response" in value:
        return {**found, "output": value["response"]}
    return {**found, "prediction": value["pred"]}


def _runs(value: Any, path: Path, place: str) -> Iterator[SavedRun]:
    """Every list of records, however deep."""
    value = list(map(_as_record, value)) if isinstance(value, list) else _as_record(value)
    if isinstance(value, list) and any(_is_record(item) for item in value):
        groups: dict[str, list[Saved]] = {}
        for index, item in enumerate(value):
            where = f"{path}: record {place}[{index}]"
            run = f"{item[RUN_KEY]}" if isinstance(item, dict) and RUN_KEY in item else ""
            groups.setdefault(run, []).append(_record(item, where))
        for run, outputs in groups.items():
            name = "/".join(part for part in (path.stem, place.strip("."), run) if part)
            yield SavedRun(name, outputs)
    elif _is_record(value):
        yield SavedRun(path.stem, [_record(value, f"{path}: record {place or 'of the file'}")])
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _runs(item, path, f"{place}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _runs(item, path, f"{place}.{key}" if place else str(key))


def _is_record(value: Any) -> bool:
    return (
        isinstance(value, dict) and "label" in value and bool({"output", "prediction"} & set(value))
    )


def _record(value: Any, where: str) -> Saved:
    if not _is_record(value):
        raise ConfigError(
            f"{where}: expected question, label and output or prediction, found {value!r:.80}"
        )
    question = value.get("question", value.get("task_id"))
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"{where}: question: expected a text, found {question!r:.80}")
    check_text(question, where, "question")
    check_label(value["label"], where, "label")
    return Saved(
        question=question,
        label=value["label"],
        output=_output(value, where),
        score=_score(value.get("score"), where),
        ending=_ending(value, where),
        where=where,
        trial=None if value.get("trial") is None else _trial(value["trial"], where),
    )


def _score(value: Any, where: str) -> float | None:
    try:
        return None if value is None else as_score(value)
    except (ValueError, OverflowError):
        raise ConfigError(f"{where}: score: expected a number, found {value!r:.80}") from None


def _output(value: Mapping[str, Any], where: str) -> str:
    output = value.get("output")
    if isinstance(output, str):
        return output
    if output is not None:
        raise ConfigError(f"{where}: output: expected a text, found {output!r:.80}")
    prediction = value.get("prediction")
    if prediction is None or isinstance(prediction, str | int | float):
        return "" if prediction in (None, "") else f"\\boxed{{{prediction}}}"
    raise ConfigError(f"{where}: prediction: expected a text, found {prediction!r:.80}")


def _trial(found: Any, where: str) -> int:
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < MAX_TRIALS:
        return found
    raise ConfigError(
        f"{where}: trial: expected a number from 0 to {MAX_TRIALS - 1}, found {found!r:.80}"
    )


def _ending(value: Mapping[str, Any], where: str) -> Ending:
    if "kind" not in value:
        return Ending.finished()
    try:
        limit, boundary = value.get("limit"), value.get("boundary")
        return Ending(
            value["kind"],
            None if limit is None else Limit(limit),
            None if boundary is None else Boundary(boundary),
            value.get("error"),
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from None

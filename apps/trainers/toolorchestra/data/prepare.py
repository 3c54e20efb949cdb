"""Writes ToolOrchestra's published rows as the data files of a run.

    ./pants run apps/trainers/toolorchestra/data:prepare -- --train data_slime_full.jsonl \
        --eval eval.jsonl --local-dir data

1. Rows are read and checked (`sources`). A conversation (`func_call`) becomes a customer where its
   domain is one of tau2-bench's; in other domains, whose tools and data nobody published, it is
   counted and not written.
2. A training row whose task id or whose question an evaluation file has too is left out of the
   training file; `overlap.json` lists them by task id, with each domain's count, and what the
   conversations that are not written share too.
3. Each file becomes NAME.jsonl, one `{"prompt", "label", "metadata"}` a line.

Files of other questions (a problem and its answer a row, without experts) are written too: their
rows have the experts of the run, [[toolorchestra.table]].
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.arguments import parse_args
from turnwise.command import run_command
from turnwise.config import CommandConfig, ConfigError

from apps.trainers.toolorchestra.data.sources import Found, Row, read_rows


class PrepareConfig(CommandConfig):
    """Writes ToolOrchestra's published rows as the data files of a run."""

    train: tuple[Path, ...] = ()
    """.jsonl or .parquet files of training rows."""
    eval: tuple[Path, ...] = ()
    """Files of evaluation rows; what a training file shares with them is left out of it."""
    local_dir: Path = Path("data")
    """Folder to write to; made if it does not exist."""
    models: tuple[str, ...] = ()
    """The models that the run has: lines of tables with others are left out, and rows that nobody
    could answer then. All of them stay where not given."""
    abilities: Path | None = None
    """JSON file with what the policy is told of each model's strengths, by the model's name."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """The rows of a file, and what else it has."""

    path: Path
    rows: Sequence[Row]
    found: Found


@dataclass(frozen=True, slots=True)
class Overlap:
    """Training rows that an evaluation file has too: by task id, and by question alone."""

    ids: tuple[Row, ...]
    questions: tuple[Row, ...]


def normalise(text: str) -> str:
    """What makes two questions equal: lower-case words with single spaces."""
    return " ".join(text.casefold().split())


def overlap(train: Sequence[Row], evaluation: Sequence[Row]) -> Overlap:
    """Step 2 of the module."""
    ids = {row.id for row in evaluation if row.id}
    texts = {normalise(row.prompt) for row in evaluation}
    by_id = tuple(row for row in train if row.id in ids)
    by_text = (row for row in train if row.id not in ids and normalise(row.prompt) in texts)
    return Overlap(by_id, tuple(by_text))


def shared_foreign(train: Found, evaluation: Found) -> dict[str, int]:
    """Training conversations that are not written and whose task ids an evaluation file has too,
    by domain."""
    seen = {eid for ids in evaluation.foreign.values() for eid in ids if eid}
    counts = {name: sum(eid in seen for eid in ids) for name, ids in train.foreign.items()}
    return {name: count for name, count in counts.items() if count}


def load(path: Path, models: Sequence[str] = ()) -> DataSet:
    """
    Raises:
        ConfigError: naming the file and row.
    """
    found = Found()
    rows = list(read_rows(path, found, models))
    if not found.read:
        raise ConfigError(f"{path}: holds no rows")
    return DataSet(path, rows, found)


def data_row(row: Row, number: int, name: str, abilities: Mapping[str, str]) -> dict[str, Any]:
    """A line of a data file."""
    metadata = {**row.metadata, "id": row.id or f"{name}-{number}"}
    if "experts" in metadata:
        metadata["experts"] = [
            {**expert, "ability": abilities.get(expert["model"], "")}
            for expert in metadata["experts"]
        ]
    return {"prompt": row.prompt, "label": row.label, "metadata": metadata}


def prepare(argv: Sequence[str]) -> None:
    """The command.

    Raises:
        ConfigError: a bad option, a row that can't be read, or a folder that can't be written to.
    """
    config = parse_args(
        PrepareConfig, argv, prog="prepare", description=PrepareConfig.__doc__ or ""
    )
    if not (config.train or config.eval):
        raise ConfigError("train, eval: name at least one file")
    abilities = read_abilities(config.abilities)
    evaluations = [load(path, config.models) for path in config.eval]
    trains = [load(path, config.models) for path in config.train]
    _check_names([*trains, *evaluations])
    report: dict[str, Any] = {}
    plans = [(data, list(data.rows)) for data in evaluations]
    for data in trains:
        pairs = {one.path.stem: overlap(data.rows, one.rows) for one in evaluations}
        report[data.path.stem] = {
            one.path.stem: {
                **_report(pairs[one.path.stem]),
                "not_written": shared_foreign(data.found, one.found),
            }
            for one in evaluations
        }
        left_out = {row.where for one in pairs.values() for row in (*one.ids, *one.questions)}
        plans.append((data, [row for row in data.rows if row.where not in left_out]))
    try:
        config.local_dir.mkdir(parents=True, exist_ok=True)
        for data, rows in plans:
            name = data.path.stem
            path = config.local_dir / f"{name}.jsonl"
            if path.exists() and path.samefile(data.path):
                raise ConfigError(f"--local-dir: {path} is a source; name another folder")
            write_lines(
                path, (data_row(row, number, name, abilities) for number, row in enumerate(rows))
            )
            print(_line(path, data, len(rows)))
        if report:
            write_lines(config.local_dir / "overlap.json", [report])
    except OSError as error:
        raise ConfigError(f"--local-dir {config.local_dir}: {error.strerror or error}") from None
    for train, files in report.items():
        for name, counts in files.items():
            print(
                f"{train} and {name}: {counts['by_id']} tasks of one id, {counts['by_question']}"
                " more of one question; all left out of the first"
            )
            if counts["not_written"]:
                print(
                    f"{train} and {name}: of the conversations left out"
                    f" {sum(counts['not_written'].values())} are in both"
                    f" ({_counted(counts['not_written'])})"
                )


def read_abilities(path: Path | None) -> dict[str, str]:
    """
    Raises:
        ConfigError: the file is no JSON object of texts.
    """
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--abilities {path}: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise ConfigError(f"--abilities {path}: expected an object of texts by model")
    return found


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a file whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def _report(found: Overlap) -> dict[str, Any]:
    domains = Counter(row.domain for row in found.ids if row.domain)
    return {
        "by_id": len(found.ids),
        "by_question": len(found.questions),
        "domains": dict(domains),
        "ids": [row.id for row in found.ids],
        "questions": [row.where for row in found.questions],
    }


def _line(path: Path, data: DataSet, written: int) -> str:
    found = data.found
    parts = [f"{path}: {written} of {found.read} rows"]
    shared = len(data.rows) - written
    parts += [f"{shared} of an evaluation file left out"] * bool(shared)
    if found.calls:
        parts.append(f"{found.calls.total()} conversations ({_counted(found.calls)})")
    if found.foreign:
        counts = {name: len(ids) for name, ids in found.foreign.items()}
        said = f"{sum(counts.values())} conversations left out ({_counted(counts)})"
        parts.append(f"{said}: nobody has these domains' tools and data")
    if found.customers:
        said = f"customers by {_counted(found.customers)} in the rows"
        parts.append(f"{said}: a run has its own, [toolorchestra.customer]")
    if found.unplayed:
        parts.append(f"lines of other models left out: {_counted(found.unplayed)}")
    if found.unanswered:
        parts.append(f"{found.unanswered} rows left out that nobody answers then")
    parts += [f"{found.pictures} rows with a picture left out"] * bool(found.pictures)
    if found.turned:
        parts.append(f"{found.turned} negative weights of cost or latency written as savings")
    dropped = ", ".join(name for name, count in found.dropped_weights.items() if count)
    parts += [f"weights of no feature left out: {dropped}"] * bool(dropped)
    return "; ".join(parts)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _check_names(sets: Sequence[DataSet]) -> None:
    names = Counter(data.path.stem for data in sets)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ConfigError(
            f"train, eval: two files would be written to {twice[0]}.jsonl; rename one"
        )


if __name__ == "__main__":
    sys.exit(run_command(prepare, sys.argv[1:]))

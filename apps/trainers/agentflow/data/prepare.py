"""Writes published mathematics data sets as the data files of a run.

    ./pants run apps/trainers/agentflow/data:prepare -- --train dapo-math-17k.parquet \
        --eval aime-2024.jsonl aime-2025.jsonl --local-dir data

1. Rows are read and checked (`sources`).
2. Copies of a question, by its normalised text, become one row. Copies whose answers the grader
   would not take for the same are left out of the training file and counted; in an evaluation file
   they are an error.
3. Training questions are compared with every evaluation file: equal normalised text, or a run of
   13 words in common that not more than ten training questions share (stock phrases do not count).
   Equal ones are left out of the training file, or those with a run of words too (`--drop`).
4. Each file becomes NAME.jsonl, one `{"prompt", "label", "metadata"}` a line, and `overlap.json`
   lists what was found in 3.

With `--generated` it writes what the run of presets/shipped-policy.toml needs instead: the problems
of the main job as generated_{train,held_out}.jsonl, and the shipped planner as policy/.

A source is a file, or a data set on the Hugging Face hub as OWNER/NAME or OWNER/NAME:FILE.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from turnwise.answers.labels import SameAnswers
from turnwise.arguments import parse_args
from turnwise.command import PreflightError, run_command
from turnwise.config import CommandConfig, ConfigError
from turnwise.episode import BoundaryError
from turnwise.rows.hub import locate

from apps.trainers.agentflow.config import AgentFlowOptions
from apps.trainers.agentflow.data.sources import Row, read_rows
from apps.trainers.agentflow.laptop.tasks import rows

PLANNER = Path(__file__).parents[1] / "policy"
GRAM_WORDS = 13
STOCK_PHRASE = 10
"""A run of words in more training questions than this is a stock phrase, as in GPT-3's own
comparison (Brown et al. 2020, appendix C)."""
_WORD = re.compile(r"[^\W_]+")


class PrepareConfig(CommandConfig):
    """Writes published mathematics data sets as the data files of a run."""

    train: tuple[str, ...] = ()
    """Sources of training questions: .parquet or .jsonl files, or names on the hub."""
    eval: tuple[str, ...] = ()
    """Sources of evaluation questions; each is compared with the training questions."""
    local_dir: Path = Path("data")
    """Folder to write to; made if it does not exist."""
    drop: Literal["equal", "grams"] = "equal"
    """Training questions to leave out: those equal to one of evaluation, or those that share a run
    of 13 words with one as well."""
    generated: bool = False
    """Write the generated problems of the main job and the planner that is trained on them."""
    overlap_examples: int = Field(default=20, ge=0)
    """Pairs of each kind that overlap.json shows for each evaluation file."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """A source without copies.

    Attributes:
        name: Of the file to write, without `.jsonl`.
        rows: By normalised text, in the order of their first copy.
        read: Rows in the source.
        conflicts: Questions that were left out because their copies differ in the answer.
    """

    name: str
    rows: Mapping[str, Row]
    read: int
    conflicts: int


def normalise(text: str) -> str:
    """Lower-case words and signs with single spaces: what makes two questions equal."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def grams(text: str) -> set[str]:
    """Every run of 13 words; a shorter text is one run."""
    words = _WORD.findall(text.casefold())
    if not words:
        return set()
    count = max(1, len(words) - GRAM_WORDS + 1)
    return {" ".join(words[at : at + GRAM_WORDS]) for at in range(count)}


def without_copies(
    name: str, rows: Iterable[Row], same: Callable[[str, str], bool], *, strict: bool
) -> DataSet:
    """Step 2 of the module; `same` says whether two labels are one answer.

    Raises:
        ConfigError: there is no row, or `strict` and two copies differ in the answer.
    """
    kept: dict[str, Row] = {}
    conflicts: set[str] = set()
    read = 0
    for row in rows:
        read += 1
        key = normalise(row.text)
        first = kept.setdefault(key, row)
        if not same(first.label, row.label):
            if strict:
                raise ConfigError(
                    f"{row.where}: the question of {first.where} with the answer {row.label!r}, "
                    f"there {first.label!r}; correct the file"
                )
            conflicts.add(key)
    if not read:
        raise ConfigError(f"{name}: holds no rows")
    rest = {key: row for key, row in kept.items() if key not in conflicts}
    return DataSet(name, rest, read, len(conflicts))


@dataclass(frozen=True, slots=True)
class Overlap:
    """Training questions that an evaluation file has too.

    Attributes:
        equal: Normalised texts that both have.
        similar: Pairs of normalised texts, training first, that share a run of words only.
    """

    equal: tuple[str, ...]
    similar: tuple[tuple[str, str], ...]


def overlap(train: Mapping[str, Row], evaluation: Mapping[str, Row]) -> Overlap:
    """Step 3 of the module."""
    holders: dict[str, str] = {}
    for key, row in evaluation.items():
        holders |= dict.fromkeys(grams(row.text), key)
    hits = {key: grams(row.text) & holders.keys() for key, row in train.items()}
    uses = Counter(gram for found in hits.values() for gram in found)
    similar = []
    for key, found in hits.items():
        telling = sorted(gram for gram in found if uses[gram] <= STOCK_PHRASE)
        if telling and key not in evaluation:
            similar.append((key, holders[telling[0]]))
    return Overlap(tuple(key for key in train if key in evaluation), tuple(similar))


def data_row(name: str, number: int, row: Row) -> dict[str, Any]:
    """A line of a data file."""
    metadata = {**row.metadata, "id": str(row.metadata.get("id", f"{name}-{number}"))}
    return {"prompt": row.text, "label": row.label, "metadata": metadata}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a data file whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def _load(source: str, same: Callable[[str, str], bool], *, strict: bool) -> DataSet:
    path = locate(source)
    return without_copies(path.stem, read_rows(path), same, strict=strict)


def _report(found: Overlap, limit: int) -> dict[str, Any]:
    return {
        "equal": len(found.equal),
        "similar": len(found.similar),
        "equal_questions": list(found.equal[:limit]),
        "similar_pairs": [
            {"train": train, "eval": evaluation} for train, evaluation in found.similar[:limit]
        ],
    }


def prepare(argv: Sequence[str]) -> None:
    """The command.

    Raises:
        ConfigError: a bad option, a row that can't be read, or a folder that can't be written to.
        PreflightError: formulas can't be compared here.
    """
    config = parse_args(
        PrepareConfig, argv, prog="prepare", description=PrepareConfig.__doc__ or ""
    )
    if bool(config.train or config.eval) == config.generated:
        raise ConfigError("train, eval: name at least one source, or give --generated alone")
    if config.generated:
        try:
            write_generated(config.local_dir)
        except OSError as error:
            place = f"--local-dir {config.local_dir}"
            raise ConfigError(f"{place}: {error.strerror or error}") from None
        return
    try:
        with SameAnswers() as same:
            evaluations = [_load(source, same, strict=True) for source in config.eval]
            trains = [_load(source, same, strict=False) for source in config.train]
    except BoundaryError as error:
        raise PreflightError(f"copies with different answers: {error}") from None
    _check_names(trains + evaluations)
    report, plans = {}, [(data, data.rows) for data in evaluations]
    for data in trains:
        found = {one.name: overlap(data.rows, one.rows) for one in evaluations}
        report[data.name] = {
            name: _report(one, config.overlap_examples) for name, one in found.items()
        }
        left_out = {key for one in found.values() for key in one.equal}
        if config.drop == "grams":
            left_out |= {key for one in found.values() for key, _ in one.similar}
        plans.append((data, {key: r for key, r in data.rows.items() if key not in left_out}))
    try:
        config.local_dir.mkdir(parents=True, exist_ok=True)
        for data, rows in plans:
            path = config.local_dir / f"{data.name}.jsonl"
            _refuse_source(path, (*config.train, *config.eval))
            write_rows(path, _data_rows(data.name, rows.values()))
            print(_line(path, data, len(rows)))
        if report:
            text = json.dumps(report, indent=2, ensure_ascii=False)
            (config.local_dir / "overlap.json").write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--local-dir {config.local_dir}: {error.strerror or error}") from None
    for train, files in report.items():
        for name, counts in files.items():
            print(
                f"{train} and {name}: {counts['equal']} equal questions, {counts['similar']} more "
                f"with {GRAM_WORDS} words in a row in common"
            )


def write_generated(folder: Path) -> None:
    """Writes the problems that the main job trains and is evaluated on, and its planner."""
    folder.mkdir(parents=True, exist_ok=True)
    per_cell = AgentFlowOptions(helpers="rules").eval_per_cell
    for split in ("train", "held-out"):
        path = folder / f"generated_{split.replace('-', '_')}.jsonl"
        found = rows(split, eval_per_cell=per_cell)
        write_rows(
            path,
            (
                {"prompt": one.prompt, "label": one.label, "metadata": {"id": one.id}}
                for one in found
            ),
        )
        print(f"{path}: {len(found)} problems")
    policy = folder / "policy"
    shutil.copytree(PLANNER, policy, dirs_exist_ok=True)
    print(f"{policy}: the shipped planner")


def _data_rows(name: str, rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    return (data_row(name, number, row) for number, row in enumerate(rows))


def _line(path: Path, data: DataSet, written: int) -> str:
    copies = data.read - len(data.rows) - data.conflicts
    parts = [f"{path}: {written} questions of {data.read} rows"]
    parts += [f"copies left out: {copies}"] * bool(copies)
    parts += [f"{data.conflicts} with answers that differ left out"] * bool(data.conflicts)
    dropped = len(data.rows) - written
    parts += [f"{dropped} of an evaluation file left out"] * bool(dropped)
    return ", ".join(parts)


def _check_names(sets: Sequence[DataSet]) -> None:
    names = Counter(data.name for data in sets)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ConfigError(
            f"train, eval: two sources would be written to {twice[0]}.jsonl; rename one"
        )


def _refuse_source(path: Path, sources: Sequence[str]) -> None:
    if path.exists() and any(path.samefile(one) for one in sources if Path(one).exists()):
        raise ConfigError(f"--local-dir: {path} is a source; name another folder")


if __name__ == "__main__":
    sys.exit(run_command(prepare, sys.argv[1:]))

"""Reads a run folder for its report, whatever of it is there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from turnwise.config import ConfigError
from turnwise.run.control import Outcome, read_history
from turnwise.run.folder import RunFolder
from turnwise.run.jsonl import parse_line, read_lines
from turnwise.run.metrics import EvalRow, EventRow, SlimeRow, TrainRow, read_metrics
from turnwise.run.summary import AnySummary, read_summary
from turnwise.run.traces import Trace, parse_trace

MAX_EPISODES = 60
"""Episodes that a report holds whole."""


@dataclass(frozen=True, slots=True)
class RunData:
    """A run folder, read.

    Attributes:
        name: The folder's.
        config: The resolved configuration; empty where the file is missing.
        trains, evals: Rows in order of their steps.
        summary: None while the run has none.
        traces: Episodes to show, the most telling first: of the first and the last evaluation,
            then of training steps spread evenly over the run.
        traced: Episodes in the file.
        slime: slime's own numbers by name, `(step, value)` in order; empty for a local run.
        gaps: What is missing or torn, in words.
        events: Stalls, in order.
        outcomes: What was asked of the run, in order.
    """

    name: str
    config: Mapping[str, Any]
    trains: Sequence[TrainRow]
    evals: Sequence[EvalRow]
    summary: AnySummary | None
    traces: Sequence[Trace]
    traced: int
    slime: Mapping[str, Sequence[tuple[float, float]]]
    gaps: Sequence[str]
    events: Sequence[EventRow] = ()
    outcomes: Sequence[Outcome] = ()

    @property
    def rows(self) -> list[TrainRow | EvalRow]:
        """All rows: training steps, then evaluations."""
        return [*self.trains, *self.evals]

    @property
    def steps(self) -> int:
        """Training steps done."""
        return self.trains[-1].step if self.trains else 0


def load_run(path: Path) -> RunData:
    """Reads what is there of a run: it may be under way, interrupted or old.

    Raises:
        ConfigError: if `path` is no run folder, or a file in it is broken; names file and line.
    """
    folder = RunFolder(path)
    files = (folder.config, folder.metrics, folder.episodes)
    if not path.is_dir():
        what = "is a file" if path.exists() else "no such folder"
        raise ConfigError(f"{path}: {what}; name the folder of a run")
    if not any(file.is_file() for file in files):
        names = ", ".join(file.name for file in files)
        raise ConfigError(f"{path}: not a run folder: none of {names} is there")
    gaps = [f"{file.name} is missing" for file in files if not file.is_file()]
    gaps += [
        f"the last line of {name} is torn ({size} bytes) and left out"
        for name, size in folder.torn().items()
    ]
    rows = read_metrics(folder.metrics)
    chosen, traced = _choose(folder.episodes)
    return RunData(
        name=path.resolve().name,
        config=folder.read_config() if folder.config.is_file() else {},
        trains=sorted((r for r in rows if isinstance(r, TrainRow)), key=lambda row: row.step),
        evals=sorted((r for r in rows if isinstance(r, EvalRow)), key=lambda row: row.step),
        summary=read_summary(folder),
        traces=_traces(folder.episodes, chosen),
        traced=traced,
        slime=numbers_by_name([row for row in rows if isinstance(row, SlimeRow)]),
        gaps=gaps,
        events=[row for row in rows if isinstance(row, EventRow)],
        outcomes=read_history(path),
    )


def numbers_by_name(rows: Sequence[SlimeRow]) -> dict[str, list[tuple[float, float]]]:
    """Values by name; the optimiser steps of a training step stand evenly after it."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        for name, value in row.numbers.items():
            if value is not None:
                found.setdefault(name, {}).setdefault(row.step, []).append(value)
    return {
        name: [
            (step + place / len(values), value)
            for step, values in sorted(steps.items())
            for place, value in enumerate(values)
        ]
        for name, steps in found.items()
    }


class _Head(msgspec.Struct, frozen=True):
    """What decides whether a trace is shown; the rest of the line is not even parsed."""

    step: int
    kind: str
    why: str = ""


def _choose(path: Path) -> tuple[list[int], int]:
    """Numbers of the lines to show, the most telling first, and how many lines there are.

    The first and the last evaluation come first, then training steps spread evenly over the run,
    the first and the last among them, then other evaluations.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    decode = msgspec.json.Decoder(_Head).decode
    traced = 0
    for traced, line in enumerate(read_lines(path), start=1):
        try:
            head = decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path}:{traced}: not a trace ({error}); mend or remove this line"
            ) from None
        groups.setdefault((head.kind, head.step), []).append(traced)
    evals = sorted(key for key in groups if key[0] == "eval")
    trains = sorted(key for key in groups if key[0] != "eval")
    order = [*evals[:1], *evals[1:][-1:], *halving(trains), *halving(evals[1:-1])]
    chosen: list[int] = []
    for key in order:
        if len(chosen) + len(groups[key]) <= MAX_EPISODES:
            chosen += groups[key]
        elif not chosen:
            chosen += groups[key][:MAX_EPISODES]
    return chosen, traced


def halving(items: Sequence[Any]) -> list[Any]:
    """All items, so ordered that every beginning of the list is spread evenly over them.

    First and last, then the middle, the quarters, ...
    """
    if not items:
        return []
    order, seen, parts = [0, len(items) - 1], {0, len(items) - 1}, 2
    while len(seen) < len(items):
        for index in range(1, parts, 2):
            place = index * (len(items) - 1) // parts
            if place not in seen:
                seen.add(place)
                order.append(place)
        parts *= 2
    return [items[place] for place in dict.fromkeys(order)]


def _traces(path: Path, chosen: Sequence[int]) -> list[Trace]:
    traces: dict[int, Trace] = {}
    wanted = set(chosen)
    for number, line in enumerate(read_lines(path), start=1):
        if number in wanted:
            row = parse_line(path, number, line)
            try:
                traces[number] = parse_trace(row)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: {error}") from None
    return [traces[number] for number in chosen]


def readable(value: Any) -> str:
    """A value of the configuration for people."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)

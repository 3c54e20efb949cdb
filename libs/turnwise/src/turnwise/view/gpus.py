"""GPU memory of a job of slime's, from the lines that its trainer's ranks write into the job's log.

slime logs no utilisation; how fast its GPUs compute and how long they wait is among its own numbers
(`turnwise.report.charts.gpu_charts`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

from turnwise.report.sections import Table
from turnwise.view.follow import GrowingFile

# slime.utils.memory_utils.print_memory, behind Ray's prefix.
_LINE = re.compile(r"\[Rank (\d{1,6})\] Memory-Usage (.{0,200}?): (\{'gpu'.{0,2000}?\})")
MAX_RANKS = 256
HEAD = ("rank", "GPU", "used", "of", "torch holds", "last said", "most used", "then")


class _Rank:
    """What a rank said last, and when its GPU was the fullest."""

    def __init__(self) -> None:
        self.last: tuple[str, Mapping[str, object]] = ("", {})
        self.most: tuple[float, str] = (-1.0, "")


class GpuMemory:
    """Follows the logs of a run folder."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._files: dict[Path, GrowingFile] = {}
        self._ranks: dict[int, _Rank] = {}

    def refresh(self, until: float) -> None:
        """Reads on in the logs, until a time of the monotonic clock."""
        for path in sorted(self._logs.glob("*.log")):
            file = self._files.setdefault(path, GrowingFile(path))
            file.look()
            for _, line in file.lines(until):
                if b"Memory-Usage" in line:
                    self._take(line.decode("utf-8", "replace"))

    def rows(self) -> Table:
        """A row a rank; none where nothing was said."""
        rows = []
        for number, rank in sorted(self._ranks.items()):
            stage, said = rank.last
            most, then = rank.most
            rows.append(
                [
                    str(number),
                    str(said.get("gpu", "")),
                    _gb(said, "used_GB"),
                    _gb(said, "total_GB"),
                    _gb(said, "reserved_GB"),
                    stage,
                    f"{most:.1f} GB",
                    then,
                ]
            )
        return Table(HEAD, rows, len(rows), "the job's log")

    def _take(self, line: str) -> None:
        found = _LINE.search(line)
        if found is None:
            return
        try:
            said = ast.literal_eval(found[3])
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return
        number = int(found[1])
        used = _number(said.get("used_GB")) if isinstance(said, dict) else None
        if used is None:
            return
        if number not in self._ranks and len(self._ranks) >= MAX_RANKS:
            return
        rank = self._ranks.setdefault(number, _Rank())
        rank.last = (found[2], said)
        rank.most = max(rank.most, (used, found[2]))


def _gb(said: Mapping[str, object], name: str) -> str:
    value = _number(said.get(name))
    return "-" if value is None else f"{value:.1f} GB"


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None

"""The rows of a job's run folder as they come, held against the reasons to end the run."""

from __future__ import annotations

from pathlib import Path

from turnwise.config import ConfigError
from turnwise.run.jsonl import parse_line
from turnwise.run.metrics import EventRow, parse_row
from turnwise.run.signs import leave_sign
from turnwise.run.status import is_paused
from turnwise.stopping import RowWatch


class FolderWatch:
    """Follows metrics.jsonl, which the hooks write on whatever node has the folder.

    Rows of earlier jobs in the same folder are not looked at again: what they broke off for may
    have been mended. A job that goes on rewrites the file, so lines are known by their content.
    """

    def __init__(self, run_dir: Path, rows: RowWatch) -> None:
        self._path = run_dir / "metrics.jsonl"
        self._rows = rows
        self._known: set[int] = set()
        self._file, self._place = 0, 0
        self._known.update(hash(line) for _, line in self._new())

    def look(self) -> None:
        """Takes the rows that have come since.

        Raises:
            StopRun: see `RowWatch`.
        """
        leave_sign(self._path.parent, "launcher", "follows the job")
        found = False
        for number, line in self._new():
            if hash(line) in self._known:
                continue
            self._known.add(hash(line))
            try:
                row = parse_row(parse_line(self._path, number, line))
            except (ConfigError, ValueError):
                # A row of a newer product, or a torn one that was cut; the report names it.
                continue
            if isinstance(row, EventRow):
                # What happens is no progress.
                continue
            found = True
            self._rows.take(row)
        if not found and is_paused(self._path.parent):
            self._rows.excuse()
        elif not found:
            self._rows.wait()

    def _new(self) -> list[tuple[int, bytes]]:
        """Whole lines since the last look with their numbers in what was read."""
        try:
            with self._path.open("rb") as stream:
                status = self._path.stat()
                if status.st_ino != self._file or status.st_size < self._place:
                    self._file, self._place = status.st_ino, 0
                stream.seek(self._place)
                lines = stream.read().split(b"\n")[:-1]
        except OSError:
            return []
        self._place += sum(len(line) + 1 for line in lines)
        return list(enumerate(lines, start=1))

"""Creating a run folder, and opening one again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.run.disk import making, reading, writing
from turnwise.run.jsonl import append_rows, dump, keep_until, parse_line, read_rows, torn_tail


@dataclass(frozen=True, slots=True)
class Cut:
    """What a resumed run left out of its files.

    Attributes:
        rows: Rows of later steps, of metrics and episodes together.
        torn: Names of files whose last line a crash had torn, with the bytes of it.
    """

    rows: int
    torn: Mapping[str, int]

    def __str__(self) -> str:
        parts = [f"{self.rows} rows of later steps dropped"] if self.rows else []
        parts += [
            f"torn last line of {name} cut ({size} bytes)" for name, size in self.torn.items()
        ]
        return ", ".join(parts) or "nothing to drop"


class RunFolder:
    """Paths of a run, and the two files that grow with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.episodes = path / "episodes.jsonl"
        self.summary = path / "summary.json"
        self.report = path / "report.html"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"

    @classmethod
    def create(cls, path: Path | None, method: str, config: Mapping[str, Any]) -> RunFolder:
        """Makes a new folder, `runs/<method>-<time>` where `path` is None, and writes the config.

        Raises:
            ConfigError: if the folder holds anything already, or can't be made.
            PreflightError: if the disk can't hold it.
        """
        with making("--run-dir", path):
            folder = cls(path if path is not None else _fresh(Path("runs"), method))
            if folder.path.exists() and not folder.path.is_dir():
                raise ConfigError(f"--run-dir {folder.path}: is a file; name a folder")
            if folder.path.exists() and any(folder.path.iterdir()):
                raise ConfigError(
                    f"--run-dir {folder.path}: exists and is not empty; name another folder, or add"
                    " --resume to go on with this run"
                )
            folder.logs.mkdir(parents=True, exist_ok=True)
            folder.checkpoints.mkdir(exist_ok=True)
            _write_whole(folder.config, dump(config, indent=1) + "\n")
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens the folder of a run that was started before.

        Raises:
            ConfigError: if it is not one.
        """
        folder = cls(path)
        if not path.is_dir():
            what = "is a file" if path.exists() else "no such folder"
            raise ConfigError(f"{path}: {what}; name the folder of a run")
        if not folder.config.is_file():
            raise ConfigError(f"{path}: not a run folder: it has no config.json")
        return folder

    def read_config(self) -> dict[str, Any]:
        """The configuration that the run was started with.

        Raises:
            ConfigError: if it is missing or not JSON.
        """
        with reading(self.config):
            text = self.config.read_bytes()
        return parse_line(self.config, 1, text)

    def refuse_changes(
        self, config: Mapping[str, Any], *, may_change: Collection[str], because: str
    ) -> None:
        """Raises ConfigError where `config` differs from what the run was started with.

        Args:
            config: The resolved configuration of a run that would go on here, by field name.
            may_change: Fields that are not compared; `section.field` for one of a section.
            because: Why the others are, for the error.
        """
        before, now = flat(self.read_config()), flat(config)
        for name in now:
            if name not in may_change and before.get(name) != now[name]:
                raise ConfigError(
                    f"--{name.replace('_', '-')} is {now[name]!r}, the run in {self.path} was"
                    f" started with {before.get(name)!r}: {because}"
                )

    def append(self, row: Mapping[str, Any], traces: Iterable[Mapping[str, Any]] = ()) -> None:
        """Writes a row of metrics.jsonl, and before it the traces of the episodes that it counts.

        Both are on the disk when this returns: a checkpoint that is saved afterwards never knows
        more than they do.

        Raises:
            RunError: if they can't be written.
        """
        append_rows(self.episodes, traces, sync=True)
        append_rows(self.metrics, [row], sync=True)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Writes a row of metrics.jsonl; see `append`."""
        append_rows(self.metrics, [row], sync=True)

    def append_episode(self, row: Mapping[str, Any]) -> None:
        """Writes a row of episodes.jsonl, before the row that counts it; see `append`."""
        append_rows(self.episodes, [row], sync=True)

    def metric_rows(self) -> list[dict[str, Any]]:
        """All rows of metrics.jsonl. Raises ConfigError naming a broken line."""
        return list(read_rows(self.metrics))

    def episode_rows(self) -> list[dict[str, Any]]:
        """All rows of episodes.jsonl. Raises ConfigError naming a broken line."""
        return list(read_rows(self.episodes))

    def torn(self) -> dict[str, int]:
        """Files whose last line was torn by a crash, with the bytes of it."""
        tails = {path.name: torn_tail(path) for path in (self.metrics, self.episodes)}
        return {name: size for name, size in tails.items() if size}

    def cut_after(self, step: int) -> Cut:
        """Forgets what lies behind `step`, so that a resumed run writes no step twice.

        An evaluation of the weights at `step` was made when that step was done and stays. Traces
        without the row that counts their episodes go: that step or evaluation was broken off and is
        made again. The summary goes: a run that goes on has none before it ends.

        Raises:
            ConfigError: naming a broken line; that file is then as it was.
        """
        torn = self.torn()
        rows = keep_until(self.metrics, step)
        counted = {_counted_by(row) for row in read_rows(self.metrics)}
        rows += keep_until(self.episodes, step, lambda row: _counted_by(row) in counted)
        forget(self.summary)
        return Cut(rows, torn)


def _counted_by(row: Mapping[str, Any]) -> tuple[str, Any]:
    """What a trace and the row that counts its episode have in common."""
    return str(row.get("kind")), row.get("step")


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values by field name, those of sections by `section.field`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found.update({f"{name}.{key}": inner for key, inner in flat(value).items()})
        else:
            found[name] = value
    return found


def forget(path: Path) -> None:
    """Removes a file of a run that holds no more, if it is there.

    Raises:
        RunError: it can't be removed.
    """
    with writing(path):
        path.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all.

    Raises:
        RunError: if it can't be written; the file is then as it was.
    """
    with writing(path):
        _write_whole(path, text)


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def require_space(path: Path, needed: int, what: str) -> None:
    """Checks that the disk that `path` lies or will lie on has room.

    Args:
        needed: Bytes.
        what: What they are for: `3 checkpoints of 1.2 GB`.

    Raises:
        PreflightError: with what is needed, what is free and where.
    """
    there = path.absolute()
    while not there.exists():
        there = there.parent
    with making("--run-dir"):
        free = shutil.disk_usage(there).free
    if free < needed:
        raise PreflightError(
            f"{path}: {_size(needed, up=True)} needed for {what}, {_size(free)} free on the disk of"
            f" {there}; free some space or name another folder with --run-dir"
        )


def _size(count: int, *, up: bool = False) -> str:
    """Bytes for people, in the unit that leaves digits to read; what is needed is rounded up."""
    unit, name = next(
        (pair for pair in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")) if count >= pair[0]),
        (1, "bytes"),
    )
    tenths = -(-10 * count // unit) if up else 10 * count // unit
    return f"{tenths / 10:.1f} {name}" if unit > 1 else f"{count} {name}"


def _fresh(runs: Path, method: str) -> Path:
    """A folder that no other run has, made here: two runs may start in the same second."""
    name = f"{method}-{time.strftime('%Y%m%d-%H%M%S')}"
    runs.mkdir(parents=True, exist_ok=True)
    count = 1
    while True:
        path = runs / (name if count == 1 else f"{name}-{count}")
        try:
            path.mkdir()
        except FileExistsError:
            count += 1
        else:
            return path

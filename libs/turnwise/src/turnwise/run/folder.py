"""Creating a run folder, and opening one again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError
from turnwise.run.jsonl import append_row, keep_rows, read_rows


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
        """
        folder = cls(path or Path("runs") / f"{method}-{time.strftime('%Y%m%d-%H%M%S')}")
        if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
            raise ConfigError(
                f"--run-dir {folder.path}: exists and is not empty; name another folder, or add"
                " --resume to go on with this run"
            )
        try:
            folder.logs.mkdir(parents=True, exist_ok=True)
            folder.checkpoints.mkdir(exist_ok=True)
            write_whole(folder.config, json.dumps(config, indent=1, default=str) + "\n")
        except OSError as error:
            raise ConfigError(f"--run-dir {folder.path}: {error.strerror or error}") from None
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens the folder of a run that was started before.

        Raises:
            ConfigError: if it is not one.
        """
        folder = cls(path)
        if not folder.config.is_file():
            raise ConfigError(f"{path}: not a run folder: it has no config.json")
        return folder

    def read_config(self) -> dict[str, Any]:
        """The configuration that the run was started with.

        Raises:
            ConfigError: if it is missing or not JSON.
        """
        try:
            config = json.loads(self.config.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.config}: can't be read: {error}") from None
        if not isinstance(config, dict):
            raise ConfigError(f"{self.config}: expected a JSON object")
        return config

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        append_row(self.metrics, dict(row))

    def append_episode(self, row: Mapping[str, Any]) -> None:
        append_row(self.episodes, dict(row))

    def metric_rows(self) -> list[dict[str, Any]]:
        """All rows of metrics.jsonl. Raises ConfigError naming a broken line."""
        return list(read_rows(self.metrics))

    def episode_rows(self) -> list[dict[str, Any]]:
        """All rows of episodes.jsonl. Raises ConfigError naming a broken line."""
        return list(read_rows(self.episodes))

    def cut_after(self, step: int) -> int:
        """Forgets what lies behind `step`, so that a resumed run writes no step twice.

        An evaluation of the weights at `step` was made when that step was done and stays.

        Returns:
            Rows that went.
        """
        dropped = keep_rows(self.metrics, lambda row: row.get("step", 0) <= step)
        return dropped + keep_rows(self.episodes, lambda row: row.get("step", 0) <= step)


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)

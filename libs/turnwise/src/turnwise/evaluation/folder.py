"""The folder of an evaluation: what was asked, what came of it, and who took part.

| file             | holds                                                                  |
|------------------|------------------------------------------------------------------------|
| `config.json`    | the options, with those of the method in a section                     |
| `about.json`     | `About`                                                                |
| `tasks.jsonl`    | the tasks (`turnwise.evaluation.tasks`)                                |
| `trials.jsonl`   | every trial as it ends (`turnwise.evaluation.journal`)                 |
| `episodes.jsonl` | some episodes token by token                                           |
| `services.jsonl` | what the method's services used, a row for each process                |
| `metrics.jsonl`, `summary.json`, `report.html`, `comparison.json`: the results            |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from turnwise.config import ConfigError
from turnwise.evaluation.journal import Journal
from turnwise.evaluation.tasks import TaskRow, read_tasks, write_tasks
from turnwise.run.folder import RunFolder, write_whole
from turnwise.run.jsonl import append_row, dump, parse_line, read_rows
from turnwise.run.metrics import Picture


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation says of itself.

    Attributes:
        title: Which tasks: `tau-bench retail test`.
        policy, method: Who was evaluated.
        k: Trials of each task.
        players: Who took part beside the policy, by role.
        baselines: What fixed behaviours score on the same tasks.
        compared: Numbers of the episodes that are compared beside the score, by name.
        pictures: Pairs of them that the page sets against each other.
        claim: What the score means and what it does not, one sentence each.
    """

    title: str
    policy: str
    method: str
    k: int
    players: dict[str, str] = {}
    baselines: dict[str, float] = {}
    compared: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    claim: tuple[str, ...] = ()


class EvalFolder:
    """
    Attributes:
        run: The run folder that it is.
        about, tasks, journal: As on disk.
    """

    def __init__(self, run: RunFolder, about: About, tasks: Sequence[TaskRow]) -> None:
        self.run, self.about, self.tasks = run, about, tasks
        self.journal = Journal(run.path / "trials.jsonl")
        self._services = run.path / "services.jsonl"

    @classmethod
    def create(
        cls,
        path: Path | None,
        name: str,
        config: Mapping[str, Any],
        about: About,
        tasks: Sequence[TaskRow],
    ) -> EvalFolder:
        """Raises ConfigError if the folder holds anything already, or can't be made."""
        run = RunFolder.create(path, name, config)
        write_tasks(run.path, tasks)
        write_whole(run.path / "about.json", dump(msgspec.to_builtins(about), indent=1) + "\n")
        return cls(run, about, tasks)

    @classmethod
    def open(cls, path: Path) -> EvalFolder:
        """The folder of an evaluation that was started before.

        Raises:
            ConfigError: it is none, or naming the file that is broken.
        """
        run = RunFolder.open(path)
        tasks = read_tasks(path)
        about = path / "about.json"
        try:
            row = parse_line(about, 1, about.read_bytes())
            return cls(run, msgspec.convert(row, About), tasks)
        except OSError as error:
            raise ConfigError(f"{about}: {error.strerror or error}") from None
        except msgspec.ValidationError as error:
            raise ConfigError(f"{about}: {error}") from None

    def add_services(self, used: Mapping[str, float]) -> None:
        """Keeps what the method's services used in this process."""
        if used:
            append_row(self._services, used)

    def services(self) -> dict[str, float]:
        """What the method's services used, in all processes that ended properly.

        Raises:
            ConfigError: naming the file that is broken.
        """
        found: dict[str, float] = {}
        try:
            for row in read_rows(self._services):
                for name, value in msgspec.convert(row, dict[str, float | None]).items():
                    found[name] = found.get(name, 0.0) + (value or 0.0)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{self._services}: {error}; remove the file to do without") from None
        return found

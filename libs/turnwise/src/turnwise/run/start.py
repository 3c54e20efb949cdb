"""How a run was started: `start.json`, what its options would be without the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from turnwise.run.folder import flat, write_whole
from turnwise.run.jsonl import dump

NAME = "start.json"
OWN = frozenset({"config", "run_dir", "resume", "replay", "dry_run"})
"""Options that say where and whether, and not what."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """
    Attributes:
        method: By which its code is found: a name of `apps.trainers`, or an import path.
        file: The file of options: the method's preset, or the one that `--config` named; None
            without one.
        preset: Whether the method brought the file itself.
        changed: Of each option that the command line changed, by name, what it would be without.
            None where the options are not whole without the command line.
    """

    method: str
    file: str | None
    preset: bool
    changed: dict[str, Any] | None


def how_started(
    method: str,
    config: Mapping[str, Any],
    without: Mapping[str, Any] | None,
    *,
    file: Path | None,
    preset: bool,
) -> Start:
    """
    Args:
        config: What config.json holds.
        without: What it would hold without the command line; None where that can't be.
    """
    changed = None
    if without is not None:
        before = flat(without)
        now = flat(config)
        names = dict.fromkeys((*now, *before))
        changed = {
            name: before.get(name)
            for name in names
            if name not in OWN and before.get(name) != now.get(name)
        }
    return Start(
        method=method, file=None if file is None else str(file), preset=preset, changed=changed
    )


def write_start(run_dir: Path, start: Start) -> None:
    """Raises RunError where it can't be written."""
    write_whole(run_dir / NAME, dump(msgspec.to_builtins(start), indent=1) + "\n")


def read_start(run_dir: Path) -> Start | None:
    """None where the run has written none, as those of earlier versions, or it can't be read."""
    try:
        return msgspec.json.decode((run_dir / NAME).read_bytes(), type=Start)
    except (OSError, ValueError, RecursionError):
        return None

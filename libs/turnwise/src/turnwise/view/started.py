"""What the page says of how a run was started: its options, and how to play an episode again."""

from __future__ import annotations

import re
import shlex
from typing import Any

from turnwise.report.load import readable
from turnwise.run.folder import RunFolder, flat
from turnwise.run.start import read_start
from turnwise.runs.asking import backend_of
from turnwise.view.tokens import OpenEpisode


def options_shown(folder: RunFolder, config: dict[str, Any]) -> dict[str, Any]:
    """The options by name, those that the command line changed beside what they would be."""
    start = read_start(folder.path)
    rows = [(name, readable(value)) for name, value in flat(config).items()]
    if start is None:
        told = "The run did not record which of its options are not those of a preset."
        return {"told": told, "changed": [], "rows": rows}
    source = "the options' defaults"
    if start.file is not None:
        source = f"the method's preset {start.file}" if start.preset else start.file
    if start.changed is None:
        told = f"Started from {source}, which is not whole without the command line."
        return {"told": told, "changed": [], "rows": rows}
    now = dict(rows)
    changed = [
        (name, now.get(name, "none"), readable(before)) for name, before in start.changed.items()
    ]
    count = f"{len(changed)} option{'s' * (len(changed) != 1)}"
    told = f"Started from {source}; the command line changed {count if changed else 'none'}."
    return {"told": told, "changed": changed, "rows": rows}


def replay_command(folder: RunFolder, opened: OpenEpisode, line: int) -> str | None:
    """The command that plays the episode again; None where that can't be.

    Args:
        line: Of episodes.jsonl, from 1.
    """
    start = read_start(folder.path)
    seeded = isinstance(opened.trace.info.get("seed"), int)
    if start is None or backend_of(folder.path) != "local" or not opened.segments or not seeded:
        return None
    target, words = "libs/turnwise:train", ["--method", start.method]
    if re.fullmatch(r"\w+", start.method, re.ASCII):
        target, words = f"apps/trainers/{start.method}:train", []
    words += ["--run-dir", str(folder.path.resolve()), "--replay", str(line)]
    return shlex.join(["./pants", "run", target, "--", *words])

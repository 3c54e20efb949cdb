"""A job's log as it grows, and the metrics in it.

slime logs each set of metrics as `... - KIND ID: {...}`, where KIND is `rollout`, `step`, `perf`,
`eval` or a name of its own and ID counts rollouts (steps for `step`).
"""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path
from typing import Any, TextIO

_METRICS = re.compile(r" - ([\w-]+) (\d+): (\{.*\})\s*(?:\x1b\[0m)?$")
# nan and inf are no Python literals, and NumPy 2 shows its scalars as np.float64(0.5).
_NOT_A_NUMBER = re.compile(r"(?<=[:\[( ,{])-?(?:nan|inf)(?=[,\]) }])")
_SCALAR = re.compile(r"np\.\w+\(([^()]*)\)")
KINDS = {"step": "train"}


def metrics_row(line: str) -> dict[str, Any] | None:
    """The row of `metrics.jsonl` that a line of slime's log holds, or None.

    `step` is the line's number, `kind` is `train` for an optimiser step, else slime's own word.
    Values that are no finite numbers become null.
    """
    match = _METRICS.search(line)
    if match is None:
        return None
    text = _NOT_A_NUMBER.sub("None", _SCALAR.sub(r"\1", match[3]))
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    row: dict[str, Any] = {"step": int(match[2]), "kind": KINDS.get(match[1], match[1])}
    for name, value in values.items():
        if value is None or isinstance(value, str):
            row[str(name)] = value
        elif isinstance(value, (int, float)):
            row[str(name)] = value if math.isfinite(value) else None
    return row


class Follower:
    """Takes a job's log piece by piece; keeps it, shows it and picks out the metrics.

    Pieces may begin anywhere. What the run folder has of the log already is left out, so a log may
    be followed again, after a lost connection or by another process.
    """

    def __init__(self, run_dir: Path, job: str, out: TextIO | None) -> None:
        """
        Args:
            run_dir: The run folder; the log goes to `logs/JOB.log` and metrics to `metrics.jsonl`.
            job: The job's id.
            out: Where the log is shown, if anywhere.
        """
        path = run_dir / "logs" / f"{job}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
        self._log = path.open("a", encoding="utf-8", errors="replace", newline="")
        self._metrics = (run_dir / "metrics.jsonl").open("a", encoding="utf-8")
        self._out = out
        self._line = kept.rpartition("\n")[2]
        self._seen = self._skip = len(kept)

    def restart(self) -> None:
        """The next piece is again the log's first one."""
        self._skip = self._seen

    def feed(self, piece: str) -> None:
        """Takes the next piece."""
        if self._skip:
            skipped = min(self._skip, len(piece))
            self._skip -= skipped
            piece = piece[skipped:]
        self._seen += len(piece)
        for file in (self._log, self._out):
            if file is not None:
                file.write(piece)
                file.flush()
        *lines, self._line = (self._line + piece).split("\n")
        for line in lines:
            self._take(line)

    def close(self) -> None:
        """Closes the files. An unfinished last line is taken when the rest of it comes."""
        self._log.close()
        self._metrics.close()

    def _take(self, line: str) -> None:
        row = metrics_row(line)
        if row is not None:
            self._metrics.write(json.dumps(row) + "\n")
            self._metrics.flush()

"""The run folder of a run on the cluster, written by the hooks where they run.

The launcher names it as `args.turnwise_run_dir`, beside `args.turnwise` in the file of
`--custom-config-path`. slime's rollout and trainer processes may run on any node. Where the folder
is not the launcher's, which a node tells by the launcher's copy of that file in it, a node writes
to a folder of its own at the same path, says so in the log, and repeats the rows of metrics.jsonl
as lines of the log that `turnwise.run.relay` reads; traces stay there. Without a name nothing is
written.

A step or an evaluation has its row as soon as slime logs it, traces before it, both on the disk: a
run that ends in between has all that was logged. What a run that is started again finds of steps
that it makes anew is cut off.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from turnwise.command import RunError
from turnwise.config import ConfigError
from turnwise.episode import Episode
from turnwise.run.folder import RunFolder
from turnwise.run.metrics import EvalRow, EventRow, SlimeRow, TrainRow, as_row
from turnwise.run.relay import relay_line
from turnwise.run.signs import leave_sign
from turnwise.run.traces import trace_row

RUN_DIR = "turnwise_run_dir"
CUSTOM_CONFIG = "turnwise.json"
"""The launcher's copy of the file of `--custom-config-path` in the run folder."""

logger = logging.getLogger(__name__)


class RunFiles:
    """The run folder as a process of slime writes it.

    Attributes:
        path: Of the folder.
        shared: Whether it is the launcher's.
    """

    def __init__(self, path: Path, settings: object) -> None:
        """
        Args:
            path: The run folder.
            settings: `args.turnwise`.

        Raises:
            ConfigError: the folder can't be made.
        """
        self.path, self._folder = path, RunFolder(path)
        self.shared = _is_launchers(path, settings)
        self._first: int | None = None
        self._last: int | None = None
        if self.shared:
            return
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{RUN_DIR} {path}: {error.strerror or error}") from None
        logger.warning(
            "the launcher's run folder is not on %s: metrics.jsonl and episodes.jsonl are written"
            " there to %s, and rows of metrics.jsonl are repeated here",
            socket.gethostname(),
            path,
        )

    def begin_rollout(self, rollout_id: int) -> int:
        """Says that slime logs a rollout; gives the number of its training step, from 1."""
        self._begin(rollout_id, rollout_id)
        self._last = rollout_id
        return rollout_id + 1

    def begin_eval(self, rollout_id: int) -> int:
        """Says that slime logs an evaluation; gives the training steps that the weights had seen.

        slime numbers an evaluation by a rollout, before or after which it is made.
        """
        steps = rollout_id + (self._last is not None and self._last >= rollout_id)
        self._begin(rollout_id, steps - 1)
        return steps

    def append(
        self, row: TrainRow | EvalRow, traces: Sequence[tuple[str, Episode]], tokenizer: Any
    ) -> None:
        """Writes a step or an evaluation, its traces first.

        Raises:
            RunError: the disk does not take them.
        """
        # The weights' first version of this process is that of its first rollout.
        shift = (self._first or 0) - 1
        rows = [
            trace_row(
                episode,
                tokenizer,
                step=row.step,
                kind=row.kind,
                why=why,
                version_shift=shift,
            )
            for why, episode in traces
        ]
        written = as_row(row)
        self._folder.append(written, rows)
        self._repeat(written)

    def append_slime(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Writes numbers of slime's; a failure is said and ends nothing."""
        row = SlimeRow(
            step=step,
            numbers={
                name: float(value) for name, value in numbers.items() if isinstance(value, Real)
            },
        )
        try:
            written = as_row(row)
            self._folder.append_metrics(written)
            self._repeat(written)
        except RunError as error:
            logger.warning("%s", error)

    def append_event(self, step: int, text: str, seconds: float, *, over: bool) -> None:
        """Writes that episodes stall, or end again; a failure is said and ends nothing."""
        event = "stall over" if over else "stall"
        row = EventRow(step=step, event=event, at=time.time(), seconds=seconds, text=text)
        logger.warning("%s", text)
        try:
            self._folder.append_metrics(as_row(row))
        except RunError as error:
            logger.warning("%s", error)

    def leave_sign(self, said: str) -> None:
        """Says in the launcher's folder that this process of the trainer lives."""
        if self.shared:
            leave_sign(self.path, "trainer", said)

    def _begin(self, rollout_id: int, keep: int) -> None:
        if self._first is not None:
            return
        self._first = rollout_id
        if any(path.exists() for path in (self._folder.metrics, self._folder.episodes)):
            cut = self._folder.cut_after(keep)
            logger.info("%s: goes on after step %d: %s", self._folder.path, keep, cut)

    def _repeat(self, row: Mapping[str, Any]) -> None:
        if not self.shared:
            logger.info("%s", relay_line(row))


_files: dict[str, RunFiles] = {}


def files_of(args: Any) -> RunFiles | None:
    """The run folder of these arguments; None where they name none.

    Raises:
        ConfigError: it can't be made.
    """
    path = getattr(args, RUN_DIR, None)
    if path is None:
        return None
    if path not in _files:
        _files[path] = RunFiles(Path(path), getattr(args, "turnwise", None))
    return _files[path]


def _is_launchers(path: Path, settings: object) -> bool:
    try:
        copy = json.loads((path / CUSTOM_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(copy, dict) and copy.get("turnwise") == settings

"""A run's rows in an experiment tracker, beside the run folder and never in its place.

    trackers = Trackers(("wandb",), folder=folder, method="tau", config={}, say=print)
    trackers.log(row)          # a row of metrics.jsonl
    trackers.close()

| name          | package         | where the numbers go                                      |
|---------------|-----------------|-----------------------------------------------------------|
| `tensorboard` | `tensorboard`   | event files in `RUN_DIR/tensorboard`                      |
| `wandb`       | `wandb`         | as its variables say; `WANDB_MODE=offline` needs no net   |
| `mlflow`      | `mlflow-skinny` | `MLFLOW_TRACKING_URI`, or files in `RUN_DIR/mlflow`       |
| `trackio`     | `trackio`       | `TRACKIO_DIR`, or trackio's own folder                    |

Names are `KIND/NAME`, `train/loss`; the step is the number of training steps done. Each tracker
has a thread of its own, so that none holds up the event loop. One that fails is said once and left
out; the run goes on. A resumed run goes on in the same run of the tracker.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Full, Queue
from typing import Any, Literal, Protocol

from turnwise.config import ConfigError
from turnwise.run.folder import RunFolder, write_whole

TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
PACKAGES: Mapping[str, tuple[str, str]] = {
    "tensorboard": ("torch.utils.tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "trackio": ("trackio", "trackio"),
}
"""The module that is imported, and what is installed for it."""
MAX_WAITING = 1000
"""Rows that wait for a tracker."""
CLOSE_S = 60.0
"""Seconds that all trackers together may take to end."""
IDENTITY = "mlflow_run.txt"


_Sent = tuple[int, dict[str, float]]


class Tracker(Protocol):
    """One tracker's run; every call may block, and may raise whatever its package raises."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


def require_packages(names: Sequence[str]) -> None:
    """Refuses trackers that are not installed.

    Raises:
        ConfigError: naming the package and how it is had.
    """
    for name in names:
        module, package = PACKAGES[name]
        needed = "tensorboard" if name == "tensorboard" else module
        if importlib.util.find_spec(needed) is None:
            raise ConfigError(
                f"--track {name}: the package {package} is not installed: pip install {package}"
            )


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row, as `KIND/NAME`; a table's under `KIND/TABLE/NAME`.

    Scores by task are left out: there are as many as tasks, and the run folder has them.
    """
    kind = str(row["kind"])
    found: dict[str, float] = {}

    def add(name: str, value: object) -> None:
        if isinstance(value, bool | str) or value is None:
            return
        if isinstance(value, int | float) and math.isfinite(value):
            found[name] = float(value)
        elif isinstance(value, Mapping):
            if value.keys() == {"mean", "episodes"}:
                add(name, value["mean"])
                return
            for key, inner in value.items():
                add(f"{name}/{key}", inner)

    for name, value in row.items():
        if name not in ("step", "kind", "scores", "compared", "pictures", "at"):
            add(f"{kind}/{name}", value)
    return found


class Trackers:
    """The trackers of a run, each behind a thread."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        folder: RunFolder,
        method: str,
        config: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        """
        Args:
            names: Of `PACKAGES`.
            folder: The run's; its name is the run's name in a tracker.
            method: The name of the project in a tracker.
            config: What the run was started with.
            say: Takes a line for the person who watches.
        """
        self._say = say
        self._waiting: dict[str, Queue[_Sent | None]] = {name: Queue(MAX_WAITING) for name in names}
        # Daemons, for one that hangs must not keep the process from ending.
        self._threads = {
            name: threading.Thread(
                target=self._serve,
                args=(name, queue, partial(OPENERS[name], folder, method, config)),
                name=f"track-{name}",
                daemon=True,
            )
            for name, queue in self._waiting.items()
        }
        for thread in self._threads.values():
            thread.start()

    def log(self, row: Mapping[str, Any]) -> None:
        """Sends a row of metrics.jsonl; returns at once."""
        self._put((int(row["step"]), numbers_of(row)))

    def close(self) -> None:
        """Ends every tracker, or leaves it behind after `CLOSE_S`."""
        self._put(None)
        until = time.monotonic() + CLOSE_S
        for name, thread in self._threads.items():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                self._say(f"tracker {name} does not end; what it was sent may be incomplete")

    def _put(self, sent: _Sent | None) -> None:
        for queue in self._waiting.values():
            # A full queue is that of a tracker that hangs, of which `close` tells.
            with suppress(Full):
                queue.put_nowait(sent)

    def _serve(self, name: str, queue: Queue[_Sent | None], make: Callable[[], Tracker]) -> None:
        try:
            tracker = make()
            while (sent := queue.get()) is not None:
                tracker.log(*sent)
            tracker.close()
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            self._say(
                f"tracker {name} is left out from here on: {type(error).__name__}: {said}; the run"
                " folder has everything"
            )


class _Tensorboard:
    def __init__(self, folder: RunFolder, method: str, config: Mapping[str, Any]) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        self._writer: Any = module.SummaryWriter(str(folder.path / "tensorboard"))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, folder: RunFolder, method: str, config: Mapping[str, Any]) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._run: Any = wandb.init(
            project=f"turnwise-{_plain(method)}",
            name=folder.path.name,
            id=_plain(folder.path.name),
            resume="allow",
            dir=str(folder.path),
            config=dict(config),
        )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    def __init__(self, folder: RunFolder, method: str, config: Mapping[str, Any]) -> None:
        mlflow: Any = importlib.import_module("mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder.path / "mlflow").absolute().as_uri()
        if uri.startswith("file:"):
            # The package refuses plain files in its newest versions unless told otherwise.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        identity = folder.path / IDENTITY
        self._run = identity.read_text("utf-8").strip() if identity.is_file() else ""
        if not self._run:
            name = f"turnwise-{_plain(method)}"
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            made = self._client.create_run(experiment, run_name=folder.path.name)
            self._run = made.info.run_id
            write_whole(identity, self._run)
            for key, value in config.items():
                self._client.log_param(self._run, key, str(value)[:500])

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self._run, _plain(name, keep="/"), value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class _Trackio:
    def __init__(self, folder: RunFolder, method: str, config: Mapping[str, Any]) -> None:
        trackio: Any = importlib.import_module("trackio")
        self._run: Any = trackio.init(
            project=f"turnwise-{_plain(method)}",
            name=folder.path.name,
            resume="allow",
            config=dict(config),
            embed=False,
        )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


OPENERS: Mapping[str, Callable[[RunFolder, str, Mapping[str, Any]], Tracker]] = {
    "tensorboard": _Tensorboard,
    "wandb": _Wandb,
    "mlflow": _Mlflow,
    "trackio": _Trackio,
}


def _plain(name: str, keep: str = "") -> str:
    """A name of letters that every tracker takes."""
    return "".join(c if c.isascii() and (c.isalnum() or c in f"-_.{keep}") else "-" for c in name)

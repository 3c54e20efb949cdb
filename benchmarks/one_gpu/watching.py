"""What the one-GPU benchmark starts and looks at: processes, their logs, the GPU."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
TAIL = 15


class Gpu:
    """NVML's utilisation of the first visible GPU, 10 times a second."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        try:
            import pynvml  # type: ignore[import-not-found]  # pants: no-infer-dep

            pynvml.nvmlInit()
            place = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(place))
            while True:
                seen = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
                self._seen.append((time.monotonic(), seen))
                time.sleep(0.1)
        except Exception as error:
            print(f"no utilisation: {error}", file=sys.stderr)

    def busy(self, times: Sequence[tuple[float, float]]) -> float | None:
        """Its mean over spans of time, in [0, 1]."""
        found = [seen for at, seen in list(self._seen) if any(a <= at <= b for a, b in times)]
        return statistics.mean(found) / 100 if found else None


def start(
    words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process group of its own, which writes into a log."""
    with log.open("wb") as out:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        )


def tail(log: Path) -> list[str]:
    """The last lines of a log, cut."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    return [line[:300] for line in text.splitlines() if line.strip()][-TAIL:]


def read(path: Path) -> Any:
    """What a part has written; None where it has not, or is just about it."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    except OSError as error:
        gpus = str(error)
    cores = len(os.sched_getaffinity(0))
    return {"gpus": gpus.splitlines(), "cores": cores, "python": sys.version.split()[0]}

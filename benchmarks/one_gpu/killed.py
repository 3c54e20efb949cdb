"""Kills a run's SGLang server in the middle of a rollout, and says what the run made of it.

    python -m benchmarks.one_gpu.killed --out killed.json --run-dir DIR [--rollout-lag 1]

Trains the shipped policy with a server of its own. Once a training step is in `metrics.jsonl`, and
`AFTER_S` later, the process that computes (SGLang's scheduler) is killed with SIGKILL, as a fault
of CUDA or of memory would end it. Written are the ledgers of all steps, the gaps, the exit code and
how long it was from the kill to the next row.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.one_gpu.measure import SGLANG, SHARE
from benchmarks.one_gpu.watching import REPOSITORY, tail

AFTER_S = 0.7
STEPS = 4
WORDS = (
    *("-m", "apps.trainers.tau.train", "--seed", "7", "--engine", "sglang"),
    *("--engine-start-s", "170", "--sglang-mem-fraction-static", SHARE),
    *("--n-samples-per-eval-prompt", "1", "--save-interval", "1000"),
    *("--sglang-options", *SGLANG, "disable-cuda-graph"),
)


def main() -> None:
    """The command."""
    given = _parse()
    given.run_dir = given.run_dir.absolute()
    log = given.run_dir.with_name(f"{given.run_dir.name}-run.log")
    words = [sys.executable, *WORDS, "--device", given.device, "--run-dir", str(given.run_dir)]
    words += ["--num-rollout", str(STEPS), "--rollout-batch-size", str(given.prompts)]
    words += ["--rollout-lag", str(given.rollout_lag)] if given.rollout_lag else []
    with log.open("wb") as out:
        run = subprocess.Popen(
            words, stdout=out, stderr=out, start_new_session=True, cwd=REPOSITORY
        )
    begun = time.monotonic()
    told: dict[str, Any] = {}
    try:
        while run.poll() is None and time.monotonic() < begun + given.limit_s:
            rows = _rows(given.run_dir)
            if rows and "killed" not in told:
                time.sleep(given.after_s)
                told |= {"killed": _kill(run.pid), "at_s": time.monotonic() - begun}
                told["rows_before"] = len(_rows(given.run_dir))
            elif "killed" in told and "next_row_s" not in told and len(rows) > told["rows_before"]:
                told["next_row_s"] = time.monotonic() - begun - told["at_s"]
            time.sleep(0.05)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    told |= {"exit": run.returncode, "steps": _rows(given.run_dir), "tail": tail(log)}
    notes = [line for line in log.read_text(errors="replace").splitlines() if "note:" in line]
    told["notes"] = [line[:300] for line in notes]
    given.out.write_text(json.dumps(told, indent=1))
    print(json.dumps(told))


def _rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []
    names = ("step", "ledger", "rollout_s", "train_s", "max_logprob_diff", "mean_logprob_diff")
    found = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    return [{name: row[name] for name in names} for row in found]


def _kill(pid: int) -> str:
    """Ends the process that computes; says which it was."""
    serving = [
        one
        for one in psutil.Process(pid).children(recursive=True)
        if "sglang" in " ".join(one.cmdline()) and "-I" not in one.cmdline()
    ]
    computing = [one for one in serving if "scheduler" in " ".join(one.cmdline())] or serving
    name = " ".join(computing[-1].cmdline())[:80]
    computing[-1].kill()
    return name


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--rollout-lag", type=int, default=0)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--after-s", type=float, default=AFTER_S, help="from a row to the kill")
    parser.add_argument("--limit-s", type=float, default=260.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()

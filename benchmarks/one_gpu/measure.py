"""Trains one policy on one GPU with the embedded engine, with SGLang, and with TRL; writes figures.

    python -m benchmarks.one_gpu.measure --out DIR torch sglang trl

A part is the product's own command in a process of its own, or for `trl` the peer of
`benchmarks.local.against_trl`. The SGLang run is begun first: while its server starts, `torch` has
the GPU, and its figures are those of a machine on which a server starts. `trl` runs when both are
over. `results.json` in the folder is written anew every second, so that what was measured before a
limit stays.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
POLICY = REPOSITORY / "apps/trainers/tau/policy"
COMMON = ("--seed", "1234", "--save-interval", "1000")
SERVED = (
    *("--engine", "sglang", "--engine-start-s", "170", "--sglang-mem-fraction-static", "0.3"),
    # What needs nothing to be compiled beside SGLang's wheel and torch, and starts soonest.
    *("--sglang-options", "attention-backend=triton", "sampling-backend=pytorch"),
    *("grammar-backend=none", "disable-prefill-cuda-graph", "cuda-graph-max-bs-decode=256"),
)
PARTS: Mapping[str, tuple[str, ...]] = {
    "sglang": ("-m", "apps.trainers.tau.train", *COMMON, *SERVED),
    "torch": ("-m", "apps.trainers.tau.train", *COMMON, "--engine-rows", "256"),
    "trl": ("-m", "benchmarks.local.against_trl", "--only", "trl"),
}
TAIL = 15
POLL_S = 1.0
STOP_S = 15.0


def main(argv: Sequence[str]) -> None:
    """The command."""
    given = _parse(argv)
    until = time.monotonic() + given.limit_s
    given.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": machine(), "parts": {}}
    runs: list[Run] = []
    waiting = [name for name in ("sglang", "torch", "trl") if name in given.parts]
    try:
        while time.monotonic() < until and (waiting or any(run.lives for run in runs)):
            if waiting and (waiting[0] != "trl" or not any(run.lives for run in runs)):
                runs.append(Run(waiting.pop(0), given))
            for run in runs:
                results["parts"][run.name] = run.figures()
            _write(given.out, results)
            time.sleep(POLL_S)
    finally:
        for run in runs:
            run.end()
            results["parts"][run.name] = run.figures()
        _write(given.out, results)
    print(json.dumps(results, indent=1))


class Run:
    """A part under way, in a process group of its own."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        self.name = name
        self.folder = given.out / name
        self.log = given.out / f"{name}.log"
        words = [sys.executable, *PARTS[name], "--device", given.device]
        if name == "trl":
            words += ["--policy", str(POLICY), "--steps", "3", "--prompts", str(given.prompts)]
        else:
            words += ["--run-dir", str(self.folder), "--num-rollout", str(given.steps)]
            words += ["--rollout-batch-size", str(given.prompts)]
            words += given.more
        self._started = time.monotonic()
        self._ended: float | None = None
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                words,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def lives(self) -> bool:
        """Whether it is not over."""
        if self.process.poll() is None:
            return True
        self._ended = self._ended or time.monotonic()
        return False

    def end(self) -> None:
        """Ends it by Ctrl-C and then by force; the server's guard ends the server."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if not self.lives:
                return
            os.killpg(self.process.pid, number)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                continue

    def figures(self) -> dict[str, Any]:
        """What is known of it by now."""
        path = self.folder / "metrics.jsonl"
        rows = []
        if path.is_file():
            whole = path.read_text().split("\n")[:-1]
            rows = [json.loads(line) for line in whole]
        lines = self.log.read_text(errors="replace").splitlines()
        return {
            "exit": None if self.lives else self.process.returncode,
            "seconds": round((self._ended or time.monotonic()) - self._started, 1),
            **figures(rows),
            "tail": [line[:300] for line in lines if line.strip()][-TAIL:],
        }


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a run from its rows; steps after the first, which warms up."""
    train = [row for row in rows if row["kind"] == "train"]
    scores = [row for row in rows if row["kind"] == "eval"]
    said: dict[str, Any] = {
        "evaluations": [
            {name: row[name] for name in ("step", "reward_mean", "reward_stderr", "coverage")}
            | {"seconds": row["eval_s"]}
            for row in scores
        ],
        "steps": [
            {
                name: row.get(name)
                for name in (
                    *("step", "rollout_s", "train_s", "sampled_tokens", "tokens_per_s"),
                    *("trained_tokens", "max_logprob_diff", "mean_logprob_diff", "reward_mean"),
                    *("coverage", "peak_memory_bytes", "groups_kept", "groups"),
                )
            }
            for row in train
        ],
    }
    if len(train) > 1:
        later = train[1:]
        said["median"] = {
            name: statistics.median(row[name] for row in later)
            for name in ("rollout_s", "train_s", "tokens_per_s")
        }
    return said


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    except OSError as error:
        gpus = str(error)
    return {"gpus": gpus.splitlines(), "cores": os.cpu_count(), "python": sys.version.split()[0]}


def _write(folder: Path, results: Mapping[str, Any]) -> None:
    draft = folder / "results.part"
    draft.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / "results.json")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.one_gpu.measure",
        description="Trains one policy on one GPU with each engine, and with TRL.",
        epilog="Words after -- are further options of the runs with an engine.",
        allow_abbrev=False,
    )
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS), metavar="PART")
    parser.add_argument("--out", type=Path, required=True, help="gets results.json, runs, logs")
    parser.add_argument("--limit-s", type=float, default=600.0, help="then all parts are ended")
    parser.add_argument("--steps", type=int, default=6, help="training steps of each engine")
    parser.add_argument("--prompts", type=int, default=32, help="prompts a step, 8 samples each")
    parser.add_argument("--device", default="cuda", help="cpu tries the script alone")
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:end])
    given.more = words[end + 1 :]
    given.out = given.out.absolute()
    return given


if __name__ == "__main__":
    main(sys.argv[1:])

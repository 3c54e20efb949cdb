"""One run by the packaged command, watched, and killed where that is what is measured."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.slime.parts import HELPERS, Part, When

POLL_S = 0.05
ENGINES = "engines.yaml"
HELPER_PORTS = {"port": 24000, "nccl_port": 24001, "dist_port": 24002}
KILL_AFTER = 3
"""Steps that are done before a process is killed."""
PORTS = ("slime/ray/rollout.py", "15000", 1000)
"""Where slime says from which port on its engines listen, and how far apart jobs beside one another
are; it takes the first free ones, and jobs that start together take the same."""


@dataclass(frozen=True)
class Place:
    """Where everything lies on the machine.

    Attributes:
        python: The node's interpreter.
        pex: Folder with `apps.trainers.METHOD/train.pex`.
        slime, megatron: Their checkouts.
        presets: Folder with `apps/trainers/METHOD/presets`.
        data: Folder with what `prepare` wrote, by method.
        work: For run folders, checkpoints and shapes.
    """

    python: str
    pex: Path
    slime: Path
    megatron: Path
    presets: Path
    data: Path
    work: Path


class Run:
    """A part's run folder and the process that follows it."""

    def __init__(self, place: Place, name: str, part: Part) -> None:
        self.part, self.place = part, place
        # A folder of its own for each: runs beside one another refuse each other.
        self.folder = place.work / name / "run"
        self.checkpoints = place.work / name / "checkpoints"
        self.command = [
            *(place.python, str(place.pex / f"apps.trainers.{part.method}" / "train.pex")),
            *("--backend", "slime", "--run-dir", str(self.folder)),
            *("--config", str(_preset(place, name, part)), *_flags(place, part, place.work / name)),
        ]
        self.dumps = place.work / name / "dumps"
        self.log = place.work / name / "launcher.log"
        self.process: psutil.Process | None = None
        self.started = 0.0

    def start(self) -> None:
        """Starts the command in a session of its own."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        if self.part.helpers:
            policy = policy_of(self.place, self.part)
            engines = self.folder.with_name(ENGINES)
            engines.write_text(HELPERS.format(policy=policy, **HELPER_PORTS), encoding="utf-8")
        with self.log.open("ab") as stream:
            child = subprocess.Popen(
                self.command,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env={**os.environ, **self.part.environment},
            )
        self.process, self.started = psutil.Process(child.pid), time.monotonic()

    def wait(self, until: float) -> int | None:
        """The exit code; None if it still runs at `until`, and is then asked to end."""
        assert self.process is not None
        try:
            return int(self.process.wait(max(0.0, until - time.monotonic())) or 0)
        except psutil.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except psutil.TimeoutExpired:
                self.process.kill()
            return None

    def lives(self) -> bool:
        """Whether the command still runs; one that ended and was not waited for does not."""
        try:
            return self.process is not None and self.process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def rows(self) -> list[dict[str, Any]]:
        """The run's rows so far."""
        try:
            lines = (self.folder / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
        except OSError:
            return []
        return [json.loads(line) for line in lines]

    def processes(self, word: str) -> Iterator[psutil.Process]:
        """Processes of this run's head whose command line has the word."""
        try:
            record = json.loads((self.folder / "launch.json").read_text())
            head = psutil.Process(record["head"]["process"]["pid"])
            for one in [head, *head.children(recursive=True)]:
                with_name = " ".join(one.cmdline())
                if word in with_name:
                    yield one
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            return

    def gpu_memory(self) -> dict[str, float]:
        """GiB taken now: `gpu N` by anybody; `trainer`, `engine` and `run` by this run's processes,
        on the GPU where each has most."""
        found = {
            f"gpu {number}": int(line[0]) / 1024
            for number, line in enumerate(_nvidia("--query-gpu=memory.used"))
        }
        words = {one.pid: " ".join(one.cmdline()) for one in self.processes("")}
        sums: Counter[tuple[str, str]] = Counter()
        for gpu, pid, used in _nvidia("--query-compute-apps=gpu_uuid,pid,used_memory"):
            command = words.get(int(pid))
            if command is None or not used.isdigit():
                continue
            who = "trainer" if "Megatron" in command else "engine"
            sums.update({(who, gpu): int(used), ("run", gpu): int(used)})
        for (who, _), mib in sums.items():
            found[who] = max(found.get(who, 0.0), mib / 1024)
        return found

    def kill_when(self, word: str, when: When, until: float) -> dict[str, Any]:
        """Kills the first process of that word at that moment; what was killed and after what."""
        # Looked up before: a checkpoint is written in less time than all processes are looked at.
        victim: psutil.Process | None = None
        while not self._is(when):
            if time.monotonic() > until or not self.lives():
                return {"killed": None}
            if victim is None and self.rows():
                victim = next(self.processes(word), None)
            time.sleep(POLL_S)
        if victim is None or not victim.is_running():
            victim = next(self.processes(word), None)
        if victim is None:
            return {"killed": None}
        done = max((row["step"] for row in self.rows() if row["kind"] == "train"), default=0)
        killed = {"killed": " ".join(victim.cmdline())[:400], "when": when, "rollouts": done}
        victim.kill()
        killed["tracker"] = self._tracker()
        killed["folders"] = sorted(path.name for path in self.checkpoints.glob("iter_*"))
        return killed

    def _tracker(self) -> str:
        tracker = self.checkpoints / "latest_checkpointed_iteration.txt"
        return tracker.read_text().strip() if tracker.is_file() else ""

    def _is(self, when: When) -> bool:
        if when == "saving":
            folders = {path.name for path in self.checkpoints.glob("iter_*")}
            saved = self._tracker()
            # A second checkpoint that the tracker does not name yet.
            return len(folders) > 1 and f"iter_{saved.zfill(7)}" != max(folders)
        rows = self.rows()
        trained = {row["step"] for row in rows if "train/step" in row.get("numbers", ())}
        played = {row["step"] for row in rows if row["kind"] == "train"}
        if when == "training":
            return KILL_AFTER in played
        return KILL_AFTER in trained and KILL_AFTER + 1 not in played


def _nvidia(query: str) -> list[list[str]]:
    words = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [[field.strip() for field in line.split(",")] for line in said.splitlines()]


def own_slime(place: Place, number: int) -> Place:
    """The place of the number-th of several jobs that start together, counted from 0.

    Raises:
        ValueError: slime does not say its ports where `PORTS` has them.
    """
    if number == 0:
        return place
    path, port, apart = PORTS
    copy = place.work / f"slime-{number}"
    shutil.copytree(place.slime, copy, dirs_exist_ok=True)
    text = (copy / path).read_text(encoding="utf-8")
    if port not in text:
        raise ValueError(f"{copy / path} does not have the port {port}")
    text = text.replace(port, str(int(port) + apart * number))
    (copy / path).write_text(text, encoding="utf-8")
    return replace(place, slime=copy)


def policy_of(place: Place, part: Part) -> Path:
    """The folder that training starts from."""
    if part.shape:
        return place.work / "shapes" / part.shape
    if part.warmstart:
        return place.work / "policies" / part.preset
    return place.data / part.method / "policy"


def _preset(place: Place, name: str, part: Part) -> Path:
    """The preset; for a shape a copy with slime's arguments of that model, which saves nothing
    unless the part says so: a checkpoint of it is large."""
    path = place.presets / "apps/trainers" / part.method / f"presets/{part.preset}.toml"
    if part.shape is None:
        return path
    own = place.work / name / "run.toml"
    own.parent.mkdir(parents=True, exist_ok=True)
    model = f'[model]\nname = "{part.shape}"\n'
    text = re.sub(r"\[model\]\nargs = \[.*?\n\]\n", model, path.read_text(), flags=re.DOTALL)
    own.write_text(re.sub(r"(?m)^(save|save-interval) = .*\n", "", text))
    return own


def _flags(place: Place, part: Part, work: Path) -> list[str]:
    """What goes before the preset.

    Args:
        work: The part's folder.
    """
    data = place.data / part.method
    files = {"tau": "family", "agentflow": "generated"}[part.method]
    policy = policy_of(place, part)
    checkpoints = work / "checkpoints"
    # Beside the machine's own slime stand others; a job's own goes first.
    paths = f"{place.slime}:{place.megatron}"
    flags = [
        *("--ray.python", place.python, "--ray.slime-dir", str(place.slime)),
        *("--ray.megatron-dir", str(place.megatron), "--ray.env-vars.HF_HUB_OFFLINE", "1"),
        *("--ray.env-vars.PYTHONPATH", paths),
        *("--hf-checkpoint", str(policy), "--ref-load", str(policy), "--load", str(checkpoints)),
        *("--prompt-data", str(data / f"{files}_train.jsonl")),
        *("--eval-prompt-data", "held-out", str(data / f"{files}_held_out.jsonl")),
    ]
    if part.shape is None or "--save-interval" in part.flags:
        flags += ["--save", str(checkpoints)]
    if part.shape is None:
        # These policies take little of a GPU; what others beside them take is not theirs.
        flags += ["--sglang-mem-fraction-static", "0.6"]
        for kind in ("rollout", "train"):
            path = work / "dumps" / f"{kind}_{{rollout_id}}.pt"
            flags += [f"--save-debug-{kind}-data", str(path)]
    if part.keeps:
        flags += ["--save-hf", str(work / "hf" / "{rollout_id}")]
    if part.helpers:
        flags += ["--sglang-config", str(work / ENGINES)]
    return [*flags, *part.flags]

"""Runs parts side by side on one machine's GPUs and writes what they gave.

    python -m benchmarks.slime.measure --pex DIR --python PYTHON --work DIR --out DIR tau agentflow

`DIR` of `--pex` has `apps.trainers.tau/train.pex` and so on, as `./pants package apps/trainers::`
makes them; `--work` gets data, run folders and checkpoints. `results.json` in `--out` is written
anew after each part, so that what was measured before a failure stays. Parts start one after the
other, `--apart` seconds between them, and share the GPUs: policies of a few million parameters take
little of them. Times of steps are those of a shared machine then; a part of which the speed is
measured is run alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.slime.figures import figures
from benchmarks.slime.parts import PARTS, Part
from benchmarks.slime.runs import Place, Run
from benchmarks.slime.shapes import make_shape

REPOSITORY = Path(__file__).parents[2]
TAIL = 12
_lock = threading.Lock()


def main(argv: Sequence[str]) -> None:
    """The command."""
    given = _parse(argv)
    place = Place(
        python=given.python,
        pex=given.pex,
        slime=given.slime,
        megatron=given.megatron,
        presets=REPOSITORY,
        data=given.work / "data",
        work=given.work,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + given.limit_s
    prepare(place, [PARTS[name] for name in given.parts])
    results: dict[str, Any] = {"machine": machine(), "parts": {}}
    threads = []
    for name in given.parts:
        run = threading.Thread(target=_part, args=(place, name, until, results, given.out))
        run.start()
        threads.append(run)
        if name != given.parts[-1]:
            time.sleep(given.apart)
    for run in threads:
        run.join()
    print(json.dumps(results["parts"], indent=1)[-8000:])


def prepare(place: Place, parts: Sequence[Part]) -> None:
    """Data and policies of the parts, by the product's own commands; shapes by `make_shape`."""
    commands = {"tau": ("prepare", "--family"), "agentflow": ("prepare", "--generated")}
    for method in {"tau", *(part.method for part in parts)}:
        folder = place.data / method
        if (folder / "policy").is_dir():
            continue
        command, flag = commands[method]
        pex = place.pex / f"apps.trainers.{method}" / f"{command}.pex"
        words = [place.python, str(pex), "--local-dir", str(folder), flag]
        subprocess.run(words, check=True, cwd=place.work.parent)
    for part in parts:
        if part.shape:
            shape = place.work / "shapes" / part.shape
            make_shape(part.shape, place.data / "tau/policy", shape)


def measure(place: Place, name: str, until: float) -> dict[str, Any]:
    """One part: its run, and the run after it where the first one is killed."""
    part = PARTS[name]
    run = Run(place, name, part)
    said: dict[str, Any] = {"about": part.about}
    run.start()
    memory = _watch_memory(run, until)
    if part.kill is not None:
        said["kill"] = run.kill_when(*part.kill, until)
        killed = time.monotonic()
        said["kill"]["exit"] = run.wait(until)
        said["kill"]["noticed_after_s"] = round(time.monotonic() - killed, 1)
        said["kill"]["last_line"] = _tail(run.log, 1)
        said["kill"]["rows"] = len(run.rows())
        run.start()
    elif name == "tau":
        said["profile"] = _profile(run, place.work / name / "profile.txt", until)
    said["exit"] = run.wait(until)
    said["seconds"] = round(time.monotonic() - run.started, 1)
    said |= figures(run.folder, run.rows())
    said["memory_gb"] = memory()
    said["tail"] = _tail(run.log, TAIL)
    said["left"] = [" ".join(one.cmdline())[:80] for one in run.processes("")]
    return said


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    return {"gpus": gpus, "cores": os.cpu_count(), "python": sys.version.split()[0]}


def _part(place: Place, name: str, until: float, results: dict[str, Any], out: Path) -> None:
    try:
        said = measure(place, name, until)
    except Exception:
        said = {"broke": traceback.format_exc()}
    with _lock:
        results["parts"][name] = said
        draft = out / "results.part"
        draft.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        draft.replace(out / "results.json")


def _watch_memory(run: Run, until: float) -> Any:
    """Watches GPU memory while the run goes on; what it returns gives the most of each GPU."""
    most: list[float] = []

    def look() -> None:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while time.monotonic() < until and run.lives():
            said = subprocess.run(query, capture_output=True, text=True, check=False).stdout
            used = [int(line) / 1024 for line in said.split() if line.isdigit()]
            most[:] = [max(pair) for pair in zip(most or used, used, strict=True)]
            time.sleep(2.0)

    with contextlib.suppress(OSError):
        threading.Thread(target=look, daemon=True).start()
    return lambda: [round(gb, 1) for gb in most]


def _profile(run: Run, out: Path, until: float) -> list[str]:
    """What holds the loop of slime's rollout process: its most frequent stacks, by py-spy."""
    while time.monotonic() < until and run.lives() and not run.rows():
        time.sleep(1.0)
    found = list(run.processes("ray::RolloutManager"))
    if not found:
        return []
    words = ["py-spy", "record", "--pid", str(found[0].pid), "--duration", "45", "--rate", "50"]
    words += ["--format", "raw", "--output", str(out), "--nonblocking"]
    try:
        subprocess.run(words, capture_output=True, timeout=90, check=False)
        stacks = out.read_text().splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        return [str(error)]
    stacks.sort(key=lambda line: -int(line.rpartition(" ")[2]))
    return [";".join(line.split(";")[-6:]) for line in stacks[:15]]


def _tail(path: Path, number: int) -> list[str]:
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return [line[:300] for line in lines if line.strip()][-number:]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.slime.measure",
        description="Runs through slime's own train.py on this machine's GPUs.",
        allow_abbrev=False,
    )
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS), metavar="PART")
    parser.add_argument("--pex", type=Path, required=True, help="folder of the packaged commands")
    parser.add_argument("--python", default=sys.executable, help="the node's interpreter")
    parser.add_argument("--slime", type=Path, default=Path("/root/slime"))
    parser.add_argument("--megatron", type=Path, default=Path("/root/Megatron-LM"))
    parser.add_argument("--work", type=Path, required=True, help="data, run folders, checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="gets results.json")
    parser.add_argument("--limit-s", type=float, default=1800.0, help="then all runs are ended")
    parser.add_argument("--apart", type=float, default=20.0, help="seconds between two starts")
    given = parser.parse_args(argv)
    for name in ("pex", "work", "out"):
        setattr(given, name, getattr(given, name).absolute())
    return given


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, subprocess.CalledProcessError, psutil.Error) as error:
        sys.exit(f"error: {error}")

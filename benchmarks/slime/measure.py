"""Runs parts side by side on one machine's GPUs and writes what they gave.

    python -m benchmarks.slime.measure --pex DIR --python PYTHON --work DIR --out DIR tau agentflow

`DIR` of `--pex` has `apps.trainers.tau/train.pex` and so on, as `./pants package apps/trainers::`
makes them; `--work` gets data, run folders and checkpoints. `results.json` in `--out` is written
anew after each part, so that what was measured before a failure stays. Parts start one after the
other, `--apart` seconds between them or at the second that is given (`async@90`), each with ports
of its own, and share the GPUs: policies of a few million parameters take little of them. Times of
steps are those of a shared machine then; a part of which the speed is measured is run alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.slime.dumps import read_dumps
from benchmarks.slime.figures import figures
from benchmarks.slime.lag import holders, record
from benchmarks.slime.parts import PARTS, Part
from benchmarks.slime.runs import Place, Run, own_slime, policy_of
from benchmarks.slime.shapes import make_shape

REPOSITORY = Path(__file__).parents[2]
TAIL = 25
PROFILE_S = 100
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
    began = time.monotonic()
    starts = [start(words, number * given.apart) for number, words in enumerate(given.parts)]
    prepare(place, [PARTS[name] for name, _ in starts])
    results: dict[str, Any] = {"machine": machine(), "parts": {}}
    threads = []
    for number, (name, at) in enumerate(starts):
        time.sleep(max(0.0, began + at - time.monotonic()))
        here = own_slime(place, number)
        run = threading.Thread(target=_part, args=(here, name, until, results, given.out))
        run.start()
        threads.append(run)
    for one in threads:
        one.join()
    print(json.dumps(results["parts"], indent=1)[-8000:])


def start(words: str, otherwise: float) -> tuple[str, float]:
    """A part and the second at which it starts, of `PART` or `PART@SECOND`."""
    name, at, second = words.partition("@")
    if name not in PARTS:
        raise SystemExit(f"error: {name}: there is no such part; there are {', '.join(PARTS)}")
    return name, float(second) if at else otherwise


def prepare(place: Place, parts: Sequence[Part]) -> None:
    """Data and policies of the parts, by the product's own commands."""
    commands = {"tau": ("prepare", "--family"), "agentflow": ("prepare", "--generated")}
    for method in {"tau", *(part.method for part in parts)}:
        folder = place.data / method
        if (folder / "policy").is_dir():
            continue
        command, flag = commands[method]
        pex = place.pex / f"apps.trainers.{method}" / f"{command}.pex"
        words = [place.python, str(pex), "--local-dir", str(folder), flag]
        subprocess.run(words, check=True, cwd=place.work.parent)


def warmstart(place: Place, part: Part) -> None:
    """The part's policy, by the product's own command; left alone if it is there."""
    policy = policy_of(place, part)
    if policy.is_dir():
        return
    policy.parent.mkdir(parents=True, exist_ok=True)
    pex = place.pex / f"apps.trainers.{part.method}" / "warmstart.pex"
    words = [place.python, str(pex), "--out", str(policy), *part.warmstart]
    with policy.with_suffix(".log").open("wb") as log:
        subprocess.run(words, check=True, stdout=log, stderr=log)


def measure(place: Place, name: str, until: float) -> dict[str, Any]:
    """One part: its run, and the run after it where the first one is killed."""
    part = PARTS[name]
    if part.shape:
        shape = place.work / "shapes" / part.shape
        make_shape(part.shape, place.data / "tau/policy", shape)
    if part.warmstart:
        warmstart(place, part)
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
    profiled = None if part.kill is not None or part.shape else _profile(run, until)
    said["exit"] = run.wait(until)
    said["seconds"] = round(time.monotonic() - run.started, 1)
    said["tail"] = _tail(run.log, TAIL)
    said["memory_gb"] = memory()
    for what, read in (
        ("run", lambda: figures(run.folder, run.rows())),
        ("dumps", lambda: read_dumps(run.dumps)),
        ("lag", profiled or dict),
    ):
        said[what] = _tried(read)
    said["left"] = [" ".join(one.cmdline())[:80] for one in run.processes("")]
    return said


def _tried(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is read, or why it can't be: the rest is worth having."""
    try:
        return read()
    except Exception:
        return {"broke": traceback.format_exc()[-1500:]}


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


def _watch_memory(run: Run, until: float) -> Callable[[], dict[str, Any]]:
    """Watches GPU memory while the run goes on.

    Returns:
        A function that gives the most (GiB) of each GPU, whoever took it, and of the run's trainer
        and engines together and alone, on the GPU where it was most.
    """
    most: dict[str, Any] = {}

    def look() -> None:
        while time.monotonic() < until and run.lives():
            for name, gb in run.gpu_memory().items():
                most[name] = round(max(most.get(name, 0.0), gb), 1)
            time.sleep(1.0)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    return lambda: most


def _profile(run: Run, until: float) -> Callable[[], dict[str, Any]] | None:
    """What holds the loop of slime's rollout process; called when the run is over."""
    while time.monotonic() < until and run.lives() and not run.rows():
        time.sleep(0.5)
    found = list(run.processes("ray::RolloutManager"))
    if not found:
        return None
    pid, trace = found[0].pid, run.folder.with_name("trace.json")
    seconds = int(min(PROFILE_S, until - time.monotonic() - 20))
    recorder = record(pid, trace, seconds)

    def told() -> dict[str, Any]:
        recorder.join(timeout=max(5.0, until - time.monotonic()))
        return holders(trace, Path(os.environ.get("GC_PAUSES", "")) / f"{pid}.txt")

    return told


def _tail(path: Path, number: int) -> list[str]:
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return [line[:300] for line in lines if line.strip()][-number:]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.slime.measure",
        description="Runs through slime's own train.py on this machine's GPUs.",
        allow_abbrev=False,
    )
    parser.add_argument("parts", nargs="+", metavar="PART[@SECOND]")
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

"""What holds the event loop of slime's rollout process, from stacks and pauses that are outside it.

py-spy looks at the process's stacks some fifty times a second (`--format chrometrace --idle`). From
one look in which the loop waits in `select` to the next it is busy; what it did in a long such
time, and what the other threads did then, is what holds it. `pauses.py` notes collected garbage.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

RATE = 50
LONG_S = 0.25
KEPT, DEEP = 12, 7
LOOP, WAITS = "run_forever", "select"
IDLE = ("wait", "select", "poll", "accept", "recv", "_worker", "main_loop", "get", "join")
Stack = tuple[str, ...]
Piece = tuple[float, float, Stack]


def record(pid: int, out: Path, seconds: int) -> threading.Thread:
    """Starts py-spy on a process; the thread ends with it, and `out` is there then."""
    words = ["py-spy", "record", "--pid", str(pid), "--duration", str(seconds)]
    words += ["--rate", str(RATE), "--format", "chrometrace", "--idle", "--threads"]
    words += ["--nonblocking", "--output", str(out)]

    def run() -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.with_suffix(".log").open("wb") as log:
            try:
                subprocess.run(words, stdout=log, stderr=log, timeout=seconds + 60, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                log.write(str(error).encode())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def holders(trace: Path, pauses: Path | None = None) -> dict[str, Any]:
    """The longest times in which a loop of the process did not wait, and its collections.

    Args:
        trace: What `record` wrote.
        pauses: What `pauses.py` wrote of that process.
    """
    threads = read(json.loads(trace.read_text()))
    held: list[dict[str, Any]] = []
    for thread, pieces in threads.items():
        for start, stop, doing in busy(pieces):
            others = {
                other: told(during(threads[other], start, stop))
                for other in threads
                if other != thread
            }
            held.append(
                {
                    **{"at_s": round(start, 2), "seconds": round(stop - start, 2)},
                    **{"thread": thread, "doing": told(doing)},
                    "others": {name: said[:1] for name, said in others.items() if said},
                }
            )
    held.sort(key=lambda one: -one["seconds"])
    return {"held": held[:KEPT], "long": len(held), "collections": collections(pauses)}


def read(events: Iterable[dict[str, Any]]) -> dict[str, list[Piece]]:
    """Of each thread, by its name, times (seconds) with the stack of functions that it had."""
    stacks: dict[int, list[str]] = {}
    since: dict[int, float] = {}
    found: dict[int, list[Piece]] = {}
    names: dict[int, str] = {}
    for event in events:
        thread, at = event["tid"], event["ts"] / 1e6
        stack = stacks.setdefault(thread, [])
        if stack and at > since[thread]:
            found.setdefault(thread, []).append((since[thread], at, tuple(stack)))
        since[thread] = at
        if event["ph"] == "B":
            if not stack:
                names[thread] = event["name"]
            where = Path(event["args"]["filename"]).name
            stack.append(f"{event['name']} ({where}:{event['args']['line']})")
        elif stack:
            stack.pop()
    return {names[thread]: pieces for thread, pieces in found.items()}


def busy(pieces: Iterable[Piece]) -> Iterator[tuple[float, float, list[Piece]]]:
    """Long times in which a loop that runs did not wait, with what it did."""
    doing: list[Piece] = []
    for piece in [*pieces, (0.0, 0.0, ())]:
        stack = piece[2]
        runs = any(LOOP in frame for frame in stack)
        if runs and WAITS not in stack[-1] and (not doing or piece[0] - doing[-1][1] < 2 / RATE):
            doing.append(piece)
            continue
        if doing and doing[-1][1] - doing[0][0] >= LONG_S:
            yield doing[0][0], doing[-1][1], doing
        doing = []


def during(pieces: Iterable[Piece], start: float, stop: float) -> list[Piece]:
    """The parts of pieces that lie between two times, without those of threads that wait."""
    cut = [(max(a, start), min(b, stop), stack) for a, b, stack in pieces]
    return [one for one in cut if one[1] > one[0] and not _waits(one[2])]


def told(pieces: Iterable[Piece]) -> list[str]:
    """The stacks that took longest, innermost last, with their seconds."""
    sums: Counter[Stack] = Counter()
    for start, stop, stack in pieces:
        sums[stack[-DEEP:]] += stop - start  # type: ignore[assignment]
    return [f"{seconds:.2f} s: {' > '.join(stack)}" for stack, seconds in sums.most_common(3)]


def collections(pauses: Path | None) -> dict[str, Any]:
    """Number and longest of the collections of each generation, in seconds."""
    if pauses is None or not pauses.is_file():
        return {}
    found: dict[str, list[float]] = {}
    for line in pauses.read_text().splitlines():
        generation, seconds, _ = line.split()
        found.setdefault(generation, []).append(float(seconds))
    return {name: [len(one), max(one)] for name, one in sorted(found.items())}


def _waits(stack: Stack) -> bool:
    last = stack[-1].split(" ")[0].rpartition(".")[2] if stack else ""
    return len(stack) < 2 or any(word in last for word in IDLE)

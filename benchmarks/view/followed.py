"""Measures what it costs a run to be followed by the page while it writes 50 episodes a second.

    python -m benchmarks.view.followed

A process works like a run on one core: it plays an episode, computes for 20 ms, and writes the
episodes whole, ten at a time and onto the disk. It does so by turns with the page open on its
episodes, in a headless Chromium, and with the page closed; compared are CPU time and time of the
same 100 episodes.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
from run.episodes import TOKENIZER, episode
from run.rows import train_row
from turnwise.run.folder import RunFolder
from turnwise.run.jsonl import Row
from turnwise.run.metrics import as_row
from turnwise.run.traces import trace_row
from turnwise.run.watching import StatusWriter

from view.browser import browser

from .measure import served

EPISODES = 100
EPISODE_S = 0.02
BATCH = 10
"""Episodes that are written together, as a step's are, onto the disk."""
PAIRS = 16


def work(path: Path) -> None:
    """The run: a line on standard input is a chunk of episodes; says its CPU time and time."""
    folder = RunFolder.create(path, "benchmark", {"method": "benchmark"})
    matrix = np.random.default_rng(0).random((192, 192))
    once = _seconds(matrix)
    number, kept = 0, list[Row]()
    with StatusWriter(path, backend="local"):
        print("ready", flush=True)
        for _ in sys.stdin:
            began, started = time.perf_counter(), time.process_time()
            for _ in range(EPISODES):
                number += 1
                name = f"{number // 64}/{number // 8}/{number}"
                played = episode(name, tool="It was sent. " * 20)
                row = trace_row(played, TOKENIZER, step=number // 64, kind="train", why="best")
                for _ in range(int(EPISODE_S / once)):
                    matrix @ matrix
                kept.append(row)
                if number % BATCH == 0:
                    folder.append(as_row(train_row(step=number // BATCH)), kept)
                    kept.clear()
            print(time.process_time() - started, time.perf_counter() - began, flush=True)


def _seconds(matrix: np.ndarray) -> float:
    started = time.process_time()
    for _ in range(200):
        matrix @ matrix
    return (time.process_time() - started) / 200


async def measure(root: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.view.followed", "--work", str(root / "live")]
    run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdin is not None and run.stdout is not None
    run.stdout.readline()

    def chunk() -> tuple[float, float]:
        assert run.stdin is not None and run.stdout is not None
        print("go", file=run.stdin, flush=True)
        cpu, wall = map(float, run.stdout.readline().split())
        return cpu, wall

    pairs = []
    with (
        served(root) as (url, process),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        async with browser(Path(profile)) as page:
            await asyncio.to_thread(chunk)
            for number in range(PAIRS):
                found = {}
                for followed in (number % 2 == 0, number % 2 == 1):
                    await page.open(f"{url}/#episodes?run=live" if followed else "about:blank")
                    await asyncio.sleep(2)
                    spent = sum(process.cpu_times()[:2])
                    found[followed] = await asyncio.to_thread(chunk)
                    if followed:
                        share = (sum(process.cpu_times()[:2]) - spent) / found[True][1]
                pairs.append((found[True], found[False], share))
    run.stdin.close()
    run.wait()
    for at, what in ((0, "CPU time"), (1, "time")):
        ratios = sorted(one[at] / other[at] for one, other, _ in pairs)
        least = min(one[at] for one, _, _ in pairs) / min(other[at] for _, other, _ in pairs)
        quarter = len(ratios) // 4
        print(
            f"{what} followed over not: {statistics.median(ratios):.3f} (quartiles"
            f" {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}), of the least {least:.3f}"
        )
    rate = EPISODES / statistics.median(other[1] for _, other, _ in pairs)
    share = statistics.median(share for _, _, share in pairs)
    print(f"{rate:.0f} episodes a second, {PAIRS} pairs; the server takes {share:.1%} of a core")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path)
    asked = parser.parse_args()
    if asked.work is not None:
        work(asked.work)
    else:
        with tempfile.TemporaryDirectory() as name:
            asyncio.run(measure(Path(name)))

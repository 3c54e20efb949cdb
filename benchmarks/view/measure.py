"""Measures the live page: first paint, memory, a very long episode, a run that is being written.

    python -m benchmarks.view.measure --folder /tmp/view-benchmark

Writes 450 MB of runs into the folder, serves them in a process of its own and opens them in
a headless Chromium.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from run.episodes import TOKENIZER, episode
from turnwise.run.folder import RunFolder
from turnwise.run.jsonl import append_rows, dump
from turnwise.run.traces import trace_row

from view.browser import Page, browser

EPISODES = 100_000
LONG_TOKENS = 1_000_000
LIVE_S = 30
PER_SECOND = 50
ROWS = "document.querySelectorAll('#episodes tbody tr').length"
TOKENS = "document.querySelectorAll('#conversation .token').length"
PAINTS = "performance.getEntriesByName('first-contentful-paint')"


def write_many(path: Path) -> None:
    """`EPISODES` of about 180 tokens."""
    folder = RunFolder.create(path, "benchmark", {"method": "benchmark"})
    row = trace_row(episode(tool="It was sent. " * 8), TOKENIZER, step=0, kind="train", why="best")
    with folder.episodes.open("wb") as stream:
        for number in range(EPISODES):
            changed = {
                "rollout_id": f"{number}",
                "group_id": f"{number // 8}",
                "step": number // 64,
            }
            stream.write(dump({**row, **changed, "task_id": f"t{number % 997}"}).encode() + b"\n")


def write_long(path: Path) -> None:
    """One episode of `LONG_TOKENS`, in 500 turns."""
    folder = RunFolder.create(path, "benchmark", {"method": "benchmark"})
    row = trace_row(episode(), TOKENIZER, step=1, kind="train", why="longest")
    segment = row["segments"][0]
    prompt, turn = segment["prompt_length"], LONG_TOKENS // 500
    count = LONG_TOKENS - prompt
    starts = list(range(prompt, LONG_TOKENS, turn))
    halves = [(at, min(at + turn // 2, LONG_TOKENS)) for at in starts]
    mask = [1 if at % turn < turn // 2 else 0 for at in range(count)]
    whole = {
        **segment,
        "ids": [*segment["ids"][:prompt], *(97 + at % 26 for at in range(count))],
        "texts": [*segment["texts"][:prompt], *(f"w{at} " for at in range(count))],
        "loss_mask": mask,
        "logprobs": [-0.25 if one else None for one in mask],
        "authors": [
            *([name, a, b] for name, a, b in segment["authors"] if b <= prompt),
            *(
                piece
                for a, b in halves
                for piece in (["policy", a, b], ["tool", b, min(a + turn, LONG_TOKENS)])
                if piece[1] < piece[2]
            ),
        ],
        "spans": [["prompt", 0, 0, prompt]],
    }
    folder.append_episode({**row, "segments": [whole]})


@contextmanager
def served(root: Path) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "libs/turnwise/view.py", str(root), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        yield line.split(" at ")[1].split()[0].rstrip("/"), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def megabytes(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


async def shown(page: Page, url: str, script: str) -> tuple[float, float]:
    """Seconds from the request until `script` is true, and until something was painted."""
    await page.open("about:blank")
    start = time.monotonic()
    await page.open(url)
    await page.until(script)
    whole = time.monotonic() - start
    await page.until(f"{PAINTS}.length")
    return whole, await page.value(f"{PAINTS}[0].startTime") / 1000


async def measure_many(page: Page, root: Path) -> None:
    with served(root) as (url, process):
        before = megabytes(process)
        first, paint = await shown(page, f"{url}/#episodes?run=many", f"{ROWS} == 100")
        start = time.monotonic()
        await page.until("document.querySelector('#found').innerText.endsWith('whole.')")
        index = first + time.monotonic() - start
        print(f"{EPISODES:,} episodes: first paint {paint:.2f} s, first rows {first:.2f} s,")
        print(
            f"  all of them {index:.1f} s; server {before:.0f} MB, then {megabytes(process):.0f} MB"
        )
        start = time.monotonic()
        await page.fill("[name=text]", "needle in a haystack")
        await page.until("document.querySelector('#found').innerText.startsWith('0 of')")
        await page.until("document.querySelector('#found').innerText.endsWith('whole.')")
        print(f"  full text of all {time.monotonic() - start:.1f} s")


async def measure_long(page: Page, root: Path) -> None:
    size = (root / "long" / "episodes.jsonl").stat().st_size
    with served(root) as (url, process):
        before = megabytes(process)
        address = f"{url}/#episode?run=long&line=0"
        first, paint = await shown(page, address, f"{TOKENS} > 100")
        print(f"{LONG_TOKENS:,} tokens ({size / 1e6:.0f} MB): first paint {paint:.2f} s, first")
        print(f"  tokens {first:.2f} s, {await page.value(TOKENS):,} in the page;", end=" ")
        start = time.monotonic()
        await page.value("document.querySelector('.block:last-child').scrollIntoView()")
        await page.until("document.querySelector('.block:last-child').innerText.includes('w9')")
        print(
            f"its end {time.monotonic() - start:.2f} s later, {await page.value(TOKENS):,} in the"
        )
        print(f"  page; server {before:.0f} MB, then {megabytes(process):.0f} MB")


async def measure_live(page: Page, root: Path) -> None:
    folder = RunFolder.create(root / "live", "benchmark", {"method": "benchmark"})
    row = trace_row(episode(), TOKENIZER, step=1, kind="train", why="best")

    async def write() -> None:
        start = time.monotonic()
        for number in range(LIVE_S * PER_SECOND):
            append_rows(folder.episodes, [{**row, "rollout_id": f"{number}"}])
            await asyncio.sleep(max(0.0, start + (number + 1) / PER_SECOND - time.monotonic()))

    with served(root) as (url, process):
        await page.open(f"{url}/#episodes?run=live")
        await asyncio.sleep(3)
        spent, start = sum(process.cpu_times()[:2]), time.monotonic()
        await write()
        seconds = time.monotonic() - start
        share = (sum(process.cpu_times()[:2]) - spent) / seconds
        expected = f"'{LIVE_S * PER_SECOND:,} of'"
        await page.until(f"document.querySelector('#found').innerText.startsWith({expected})")
        print(
            f"{PER_SECOND} episodes a second for {seconds:.0f} s:"
            f" the server takes {share:.1%} of a core"
        )


async def measure(folder: Path) -> None:
    write_many(folder / "many")
    write_long(folder / "long")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with browser(Path(profile)) as page:
            await page.resize(1280, 900)
            await measure_many(page, folder)
            await measure_long(page, folder)
            await measure_live(page, folder)


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder to write into")
    asyncio.run(measure(parser.parse_args().folder))

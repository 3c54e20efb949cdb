"""Prints the tables of libs/tokendelta/README.md: every method on the same conversations, in one
process.

    python -m benchmarks.tokendelta.measure  # with tokendelta, transformers and dashscope installed
    ./pants run benchmarks/tokendelta:measure
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokendelta import Profile, Sample, Session, pack

# The workload uses the vocabulary, the templates and the reference of the library's tests.
sys.path.insert(0, str(Path(__file__).parents[2] / "libs/tokendelta/tests"))

from benchmarks.tokendelta.methods import METHODS, best_ms
from benchmarks.tokendelta.workload import workload

TURNS = (5, 10, 30, 60)


def speeds() -> None:
    print("| method | " + " | ".join(f"{t} turns" for t in TURNS) + " | µs a turn at 60 |")
    print("|---|" + "---:|" * (len(TURNS) + 1))
    loads = {turns: workload(turns) for turns in TURNS}
    expected = {turns: METHODS["full render each turn"](loads[turns])() for turns in TURNS}
    table: dict[str, dict[int, float]] = {}
    for name, method in METHODS.items():
        cells = []
        for turns in TURNS:
            try:
                run = method(loads[turns])
            except ImportError as error:
                print(f"{name}: not installed ({error.name})", file=sys.stderr)
                break
            ids = run()
            if ids != expected[turns] and "get_token_delta" not in name:
                print(f"{name}: other ids than the full render, {turns} turns", file=sys.stderr)
            slow = "full" in name or "verl" in name
            cells.append(best_ms(run, 2 if slow else 7))
            table.setdefault(name, {})[turns] = cells[-1]
        if cells:
            row = " | ".join(f"{cell:.2f}" for cell in cells)
            print(f"| {name} | {row} | {cells[-1] / TURNS[-1] * 1000:.0f} |")
    slime = table["get_token_delta, slime's contract"]
    print("\n| ratio to | " + " | ".join(f"{t} turns" for t in TURNS) + " |")
    print("|---|" + "---:|" * len(TURNS))
    for ours in ("Session, fast encoder", "Session, HF encoder", "get_token_delta, ours"):
        for name, row in table.items():
            if name != ours and (name in slime_like or ours.startswith("Session")):
                ratios = " | ".join(f"{row[t] / table[ours][t]:.1f}" for t in TURNS)
                print(f"| {ours}: {name} | {ratios} |")
    for ours in ("Session, fast encoder", "Session, HF encoder"):
        flat = (table[ours][60] / 60) / (table[ours][5] / 5)
        print(f"\ncost per turn at 60 against 5 turns, {ours}: {flat:.2f}")
    assert slime


slime_like = ("get_token_delta, slime's contract",)


def bookkeeping() -> None:
    """Append and bookkeeping with the encoder answering from memory."""
    load = workload(2)
    profile = Profile.from_tokenizer(load.tokenizer, tools=load.tools)
    answers = [row[3] for row in load.turns]
    known = {a["content"]: profile.uniform[e].encode([a["content"]]) for a, e in
             zip(answers, ("tool", "user"), strict=True)}  # fmt: skip

    class Remembered:
        def encode(self, texts: Any) -> list[int]:
            return known[texts[0]]

    profile.uniform = {"tool": Remembered(), "user": Remembered()}  # type: ignore[dict-item]
    best = float("inf")
    for _ in range(7):
        session = Session(profile)
        session.start(load.opening)
        start = time.thread_time()
        for _ in range(500):
            for ids, scores, _, answer in load.turns:
                session.append_sampled(ids, scores)
                session.append_env([answer])
        best = min(best, (time.thread_time() - start) / 1000)
    sizes = [len(row[0]) for row in load.turns] + [len(ids) for ids in known.values()]
    print(f"\nbookkeeping without encoding: {best * 1e6:.2f} µs a turn ({sizes} tokens)")


def memory() -> None:
    load = workload(60)
    profile = Profile.from_tokenizer(load.tokenizer, tools=load.tools)
    for _ in range(2):
        tracemalloc.start()
        session = Session(profile)
        session.start(load.opening)
        for ids, scores, _, answer in load.turns:
            session.append_sampled(ids, scores)
            session.append_env([answer])
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    print(
        f"\na session of 60 turns, {len(session.prompt)} tokens: {session.nbytes / 1000:.0f} kB of"
        f" buffers, {held / 1000:.0f} kB of everything it holds"
    )


def packing() -> None:
    rnd = np.random.default_rng(0)
    samples = []
    for size in rnd.integers(1000, 9000, 256).tolist():
        response = size // 2
        samples.append(
            Sample(
                np.arange(size, dtype=np.int32),
                size - response,
                np.ones(response, np.uint8),
                np.full(response, -0.5, np.float32),
                (),
                1.0,
            )
        )
    total = sum(len(s.ids) for s in samples)
    streams = [np.ones(total, np.int32), np.ones(total, np.int32), np.ones(total, np.float32)]
    mask = np.ones(total, np.uint8)

    def copy() -> object:
        return [stream.copy() for stream in (*streams, mask)]

    def timed(call: Any) -> float:
        best = float("inf")
        for _ in range(15):
            start = time.thread_time()
            call()
            best = min(best, time.thread_time() - start)
        return best * 1000

    packed = timed(partial(pack, samples, 9216))
    balanced = timed(partial(pack, samples, 9216, ranks=8, crossover=30000))
    copied = timed(copy)
    print(
        f"\npacking {total} tokens of 256 samples: {packed:.2f} ms, over 8 ranks {balanced:.2f} ms;"
        f" copying the same bytes {copied:.2f} ms (ratio {packed / copied:.2f})"
    )


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    speeds()
    bookkeeping()
    memory()
    packing()

"""Writes down long collections of garbage in whatever Python process imports it.

`machine.sh` lets every process of the node's interpreter import it; without `GC_PAUSES`, the folder
to write to, it does nothing. A file for each process: a line for each collection with its
generation, its seconds, and when it ended (Unix time). With `GC_FREEZE=0` nothing is ever
kept out of the collections.
"""

from __future__ import annotations

import gc
import os
import time

LEAST_S = 0.02


def watch(folder: str) -> None:
    """Watches this process from now on."""
    began = [0.0]

    def look(phase: str, said: dict[str, int]) -> None:
        if phase == "start":
            began[0] = time.perf_counter()
            return
        seconds = time.perf_counter() - began[0]
        if seconds < LEAST_S:
            return
        with open(os.path.join(folder, f"{os.getpid()}.txt"), "a", encoding="ascii") as stream:
            stream.write(f"{said['generation']} {seconds:.3f} {time.time():.3f}\n")

    gc.callbacks.append(look)


if os.environ.get("GC_FREEZE") == "0":
    gc.freeze = lambda: None
if os.environ.get("GC_PAUSES"):
    watch(os.environ["GC_PAUSES"])

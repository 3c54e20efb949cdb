"""The embedded engine's decoding step on one GPU: who waits, the GPU or the process that feeds it.

    python -m benchmarks.one_gpu.decode --out decode.json

Of each shape with random weights and of each number of rows: milliseconds of a step (forward pass
and draw) as the engine makes it, of the same step replayed as one CUDA graph, which costs the host
nothing, and how many kernels it is. Where the first is far above the second, the host is what a
turn waits for. The first step of a process is told apart, since CUDA loads each kernel when it is
first called.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from turnwise.engine.decoder import Decoder
from turnwise.engine.sampling import sample

from benchmarks.one_gpu.shapes import MODELS, make
from benchmarks.one_gpu.trainer import free

ROWS = (2, 32, 256)
CONTEXT, PROMPT, USED = 896, 512, 640
"""Tokens of a row, of what all rows have in common, and of what a row holds at the step."""
STEPS = 30


def measure(decoder: Decoder, rows: int) -> dict[str, Any]:
    """One number of rows."""
    tokens = torch.randint(decoder.shape.vocab, (rows,), device=decoder.device)
    positions = torch.full((rows,), USED - 1, device=decoder.device)
    uniform = torch.rand(rows, dtype=torch.float64, device=decoder.device)
    temperature = torch.ones(rows, device=decoder.device)

    @torch.inference_mode()
    def step() -> tuple[Tensor, Tensor]:
        logits = decoder.step(tokens, positions, used=USED, shared=PROMPT)
        return sample(logits, uniform, temperature)

    first = _ms(step, 1)
    eager = _ms(step, STEPS)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    begun = time.perf_counter()
    with torch.cuda.graph(graph):
        step()
    torch.cuda.synchronize()
    captured = time.perf_counter() - begun
    replay: Callable[[], None] = graph.replay
    return {
        "first_ms": first,
        "eager_ms": eager,
        "replay_ms": _ms(replay, STEPS),
        "capture_ms": 1000 * captured,
        "kernels": sum(event.count for event in seen.key_averages()),
    }


def _ms(work: Callable[[], Any], times: int) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begun) / times


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures")
    given = parser.parse_args()
    results: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    torch.set_num_threads(1)
    for name, model in MODELS.items():
        results[name] = {}
        decoder = Decoder(make(model, "bfloat16", "cuda"), rows=max(ROWS), context=CONTEXT)
        for rows in ROWS:
            results[name][rows] = measure(decoder, rows)
            given.out.write_text(json.dumps(results, indent=1))
        del decoder
        free()
    print(json.dumps(results))


if __name__ == "__main__":
    main()

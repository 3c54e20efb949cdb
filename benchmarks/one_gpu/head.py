"""The language-model head alone: chunk sizes of ours, and Liger's fused cross-entropy.

    python -m benchmarks.one_gpu.head --out head.json      # liger-kernel where it is installed

Forward and backward of the summed log-probs of `TOKENS` tokens, hidden states and head in bfloat16,
at the two published sizes: milliseconds (the least of some) and the peak beside inputs and
gradients. Ours gives each token's log-prob and entropy, and its backward takes a weight for each,
as a policy's loss needs; Liger's gives the sum alone and computes gradients in the forward pass.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from turnwise.local.head import chunk_tokens, head_logprobs

SIZES = {"SmolLM2-135M": (49152, 576), "Qwen3-0.6B": (151936, 1024)}
"""Vocabulary and width."""
TOKENS = 16384
CHUNKS = (128, 256, 512, 1024, 2048, 4096, 16384)
TIMES = 5

Sum = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(chunk_size: int, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The summed log-probs as the trainer computes them."""
    logprobs, _ = head_logprobs(hidden, weight, targets, chunk_size=chunk_size)
    return logprobs.sum()


def liger(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The same by Liger, weights' gradients summed in float32 as ours are."""
    from liger_kernel.ops import (  # type: ignore[import-not-found]
        LigerFusedLinearCrossEntropyFunction,
    )

    function: Any = LigerFusedLinearCrossEntropyFunction
    nothing = None, None, -100, 0.0, 0.0
    made = function.apply(hidden, weight, targets, *nothing, "sum", None, False, torch.float32)
    loss: Tensor = made[0] if isinstance(made, tuple) else made
    return -loss


def ways(vocab: int) -> Iterator[tuple[str, Sum]]:
    """Names and functions."""
    for rows in sorted({*CHUNKS, chunk_tokens(vocab, None)}):
        yield str(rows), partial(ours, rows)
    if importlib.util.find_spec("liger_kernel") is not None:
        yield "liger", liger


def measure(way: Sum, vocab: int, width: int, tokens: int, device: str) -> dict[str, Any]:
    """Milliseconds, peak, and sums to hold ways against each other."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, device=device).to(torch.bfloat16).requires_grad_()
    weight = (torch.randn(vocab, width, device=device) * 0.02).to(torch.bfloat16).requires_grad_()
    targets = torch.randint(vocab, (tokens,), device=device)
    cuda = device == "cuda"
    least = float("inf")
    for _ in range(TIMES):
        hidden.grad = weight.grad = None
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        begun = time.perf_counter()
        value = way(hidden, weight, targets)
        value.backward()  # type: ignore[no-untyped-call]
        if cuda:
            torch.cuda.synchronize()
        least = min(least, time.perf_counter() - begun)
    assert hidden.grad is not None and weight.grad is not None
    peak = None
    if cuda:
        kept = sum(one.numel() * one.element_size() for one in (hidden.grad, weight.grad))
        peak = torch.cuda.max_memory_allocated() - before - kept
    return {
        "ms": 1000 * least,
        "peak": peak,
        "value": float(value.detach()),
        "gradients": [float(one.float().norm()) for one in (hidden.grad, weight.grad)],
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    given = parser.parse_args()
    results: dict[str, Any] = {}
    for name, (vocab, width) in SIZES.items():
        results[name] = {}
        for way, function in ways(vocab):
            try:
                found = measure(function, vocab, width, given.tokens, given.device)
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {error}"[:500]}
            results[name][way] = found
            given.out.write_text(json.dumps(results, indent=1))
    print(json.dumps(results))


if __name__ == "__main__":
    main()

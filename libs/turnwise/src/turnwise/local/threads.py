"""How many threads pay off, found by trying.

    from turnwise.local import threads
    threads.wait_passively()          # before anything imports torch
    ...
    choice = threads.choose_threads(model)

Two threads on a busy two-core machine can take six times as long as one: each operation ends with
a wait for the slower thread, and OpenMP threads that wait burn their core unless OMP_WAIT_POLICY is
`passive`, which the runtime reads once, when torch loads it. This module therefore imports torch
inside functions only.

A run is bit-equal to another only with the same number of threads: resume with the number that the
run folder names (`set_threads`), not with a new measurement.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

BUDGET_S = 1.2
"""Seconds after which no further measurement is begun."""

MIN_GAIN = 1.1
"""How much faster more threads must be to be taken: they use cores that others may need."""

_ROUNDS = 3
_TRAIN_TOKENS = 192
_DECODE_ROWS = 32


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """What was measured and taken.

    Attributes:
        threads: The number that torch now uses.
        seconds: Best time of the measured work by number of threads.
    """

    threads: int
    seconds: Mapping[int, float]


def wait_passively() -> None:
    """Sets OMP_WAIT_POLICY=passive unless the environment says otherwise.

    Raises:
        RuntimeError: if torch is imported already and the policy was not set: it is too late.
    """
    if "OMP_WAIT_POLICY" in os.environ:
        return
    if "torch" in sys.modules:
        raise RuntimeError(
            "wait_passively was called after torch was imported; call it first, or set "
            "OMP_WAIT_POLICY=passive in the environment"
        )
    os.environ["OMP_WAIT_POLICY"] = "passive"


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def set_threads(count: int) -> None:
    """Makes torch use `count` threads, at least 1."""
    import torch

    torch.set_num_threads(count)


def choose_threads(model: Any, *, most: int | None = None) -> ThreadChoice:
    """Measures forward and backward passes of `model` with 1, 2, 4, ... threads; takes the best.

    Gradients of the model are cleared. On a GPU nothing is measured and 1 thread is taken.

    Args:
        model: A causal language model.
        most: Threads to try at most; None takes the available cores.
    """
    import torch

    most = most or available_cores()
    if next(model.parameters()).device.type != "cpu":
        torch.set_num_threads(1)
        return ThreadChoice(1, {})
    work = _work(model)
    end = time.perf_counter() + BUDGET_S
    seconds: dict[int, float] = {}
    for count in _candidates(most):
        torch.set_num_threads(count)
        for _ in range(_ROUNDS):
            if time.perf_counter() > end:
                break
            begin = time.perf_counter()
            work()
            seconds[count] = min(seconds.get(count, float("inf")), time.perf_counter() - begin)
    model.zero_grad(set_to_none=True)
    best = pick(seconds)
    torch.set_num_threads(best)
    return ThreadChoice(best, seconds)


def pick(seconds: Mapping[int, float]) -> int:
    """The fewest threads that no larger number beats by `MIN_GAIN`; 1 where nothing is known."""
    best = 1
    for count in sorted(seconds):
        if best not in seconds or seconds[count] * MIN_GAIN < seconds[best]:
            best = count
    return best


def _candidates(most: int) -> list[int]:
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if most == 1 else [*counts, most]


def _work(model: Any) -> Callable[[], None]:
    """A piece of training and a step of decoding, small enough to be repeated."""
    import torch

    vocab = model.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    train = torch.randint(vocab, (1, _TRAIN_TOKENS), generator=generator)
    decode = torch.randint(vocab, (_DECODE_ROWS, 1), generator=generator)

    def work() -> None:
        model(input_ids=train, use_cache=False).logits.sum().backward()
        with torch.inference_mode():
            model(input_ids=decode, use_cache=False)

    return work

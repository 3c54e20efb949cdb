"""What is equal bit for bit where a step is made twice, or where an option changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from turnwise.local.optimizer import MASTERS
from turnwise.local.update import Updater

from benchmarks.one_gpu.shapes import SAMPLES, Workload, make
from benchmarks.one_gpu.trainer import Json, gradients_of, halves, options_of


def exactness(model: Callable[[], Any], workload: Workload, device: str) -> Json:
    """Tensors that differ where the same is done twice, and where an option should change nothing.

    `gradients`: two backward passes over one row, by kernel. `update`: weights after a whole update
    from the same start, without and with offloading. `same gradients`: what is left after two steps
    on gradients that are equal bit for bit, so that what differs is the optimiser's own.
    """
    made = make(model, "bfloat16", device)
    samples = workload.samples(made.config.vocab_size)[: 2 * SAMPLES]
    row = halves(samples, workload.row)[0][0]
    told: Json = {"tensors": sum(1 for _ in made.parameters()), "gradients": {}}
    for kernel in ("varlen", "sdpa"):
        (_, one), (_, other) = (gradients_of(made, row, kernel) for _ in range(2))
        told["gradients"][kernel] = unequal(one, other)
    given = [gradient.to(torch.bfloat16) for gradient in one]
    ways = {"plain": False, "plain again": False, "offload": True}
    updated: dict[str, list[Tensor]] = {}
    states: dict[str, dict[str, list[Tensor]]] = {}
    for way, offload in ways.items():
        settings = options_of({"optimizer_cpu_offload": offload}, workload, device)
        one_model = make(model, "bfloat16", device)
        updater = Updater(one_model, settings.update_settings())
        updater.update([row])
        updated[way] = _copies(one_model.parameters(), device)
        one_model = make(model, "bfloat16", device)
        states[way] = _stepped(Updater(one_model, settings.update_settings()), given, device)
    told["update"] = {w: unequal(updated[w], updated["plain"]) for w in list(ways)[1:]}
    told["same gradients"] = {
        way: {name: unequal(found, states["plain"][name]) for name, found in states[way].items()}
        for way in list(ways)[1:]
    }
    return told


def _stepped(updater: Updater, gradients: Sequence[Tensor], device: str) -> dict[str, list[Tensor]]:
    """Weights, masters and moments after two steps on given gradients."""
    optimizer = updater.optimizer
    for _ in range(2):
        optimizer.zero_grad()
        for weight, gradient in zip(updater.parameters, gradients, strict=True):
            # The gradient of this sum is the tensor itself.
            (weight * gradient).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.clip(1.0)
        optimizer.step()
    state = optimizer.state_dict()
    moments = [state["state"][place] for place in sorted(state["state"])]
    return {
        "weights": _copies(updater.parameters, device),
        "masters": _copies(state[MASTERS], device),
        "first moments": _copies((one["exp_avg"] for one in moments), device),
        "second moments": _copies((one["exp_avg_sq"] for one in moments), device),
    }


def _copies(tensors: Iterable[Tensor], device: str) -> list[Tensor]:
    return [tensor.detach().to(device, copy=True) for tensor in tensors]


def unequal(one: Sequence[Tensor], other: Sequence[Tensor]) -> int:
    """How many of two lists' tensors are not equal bit for bit."""
    return sum(not torch.equal(a, b) for a, b in zip(one, other, strict=True))

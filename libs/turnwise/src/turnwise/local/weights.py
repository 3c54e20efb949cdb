"""A policy's weights as others take them: an engine, a checkpoint, another library.

Adapters never travel. What leaves is the plain model, each adapted weight merged,

    W' = W + (alpha / r) B A, computed in float32 and rounded to W's dtype,

so that any engine of the base model serves it and `from_pretrained` reads it. The trainer computes
W x + (alpha / r) B A x. In bfloat16 the two differ by the rounding of W': a change of a weight that
is smaller than half a unit in its last place reaches the engine later, when it has grown. The gap
of every step's log-probs says how much that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.local.adapters import ADAPTER, adapter_layers


def weights_for_engine(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The plain model's weights under transformers' names, tied ones once.

    A merged tensor is made when it is asked for: keep a copy of what is needed beyond its turn.

    Yields:
        Name and tensor, without gradient, on the model's device, in the model's dtype.
    """
    layers = adapter_layers(model)
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            continue
        owner, found, kind = name.rpartition(".base_layer.")
        if not found:
            yield name, weight.detach()
        elif kind == "weight":
            yield f"{owner}.weight", _merge(layers[owner])
        else:
            yield f"{owner}.{kind}", weight.detach()


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Puts merged weights in the place of the adapted ones, for whoever reads modules.

    The base weights come back as they were, bit for bit. Meanwhile both are in memory.
    """
    layers = list(adapter_layers(model).values())
    base = [layer.base_layer.weight.data for layer in layers]
    try:
        for layer in layers:
            layer.base_layer.weight.data = _merge(layer)
        yield
    finally:
        for layer, weight in zip(layers, base, strict=True):
            layer.base_layer.weight.data = weight


def save_model(model: Any, folder: Path) -> None:
    """Writes configuration and weights of the plain model as `save_pretrained` does."""
    if not adapter_layers(model):
        model.save_pretrained(folder)
        return
    # The host has room for what the device may not hold twice.
    state = {name: one.to("cpu", copy=True) for name, one in weights_for_engine(model)}
    model.save_pretrained(folder, state_dict=state)


@torch.no_grad()
def _merge(layer: Any) -> Tensor:
    """[out, in], in the dtype of the base layer's weight."""
    base: Tensor = layer.base_layer.weight.detach()
    a, b = (part[ADAPTER].weight.float() for part in (layer.lora_A, layer.lora_B))
    return torch.addmm(base.float(), b, a, alpha=layer.scaling[ADAPTER]).to(base.dtype)

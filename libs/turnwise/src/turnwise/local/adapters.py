"""LoRA (Hu et al. 2021, arXiv 2106.09685) through peft: y = W x + (alpha / r) B A x.

`add_adapters` puts peft's layers into a transformers model, in place: the model keeps its class and
its way of being called. W is frozen; A and B have its dtype and, in bfloat16, masters of float32 as
any trained weight has.

An adapter in a checkpoint is in peft's own format: `PeftModel.from_pretrained(base, folder)` reads
it. peft is an optional package; its layers are recognised by what they hold, so that nothing else
needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from turnwise.config import ConfigError

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""All linear layers of a decoder block, as Schulman et al. 2025 ("LoRA Without Regret") advise."""
ADAPTER = "default"
FILE = "adapter_model.safetensors"


def add_adapters(model: Any, *, rank: int, alpha: float, seed: int) -> None:
    """Puts an adapter beside every linear layer of every block and freezes the rest.

    A is drawn with `seed` and B is zero, so that the policy is what it was.

    Args:
        model: A plain transformers model of the Llama family.

    Raises:
        ConfigError: peft is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model  # pants: no-infer-dep
    except ImportError:
        raise ConfigError(
            "--lora-rank needs the package peft, which is not installed: install it, or train all"
            " weights with --lora-rank 0"
        ) from None
    model.requires_grad_(False)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=list(TARGETS),
        task_type="CAUSAL_LM",
        base_model_name_or_path=model.config.name_or_path or None,
    )
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, ADAPTER)


def adapter_layers(model: nn.Module) -> dict[str, Any]:
    """peft's layers by name; empty for a plain model."""
    return {name: one for name, one in model.named_modules() if hasattr(one, "lora_A")}


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The weights that are trained, by name."""
    return [(name, one) for name, one in model.named_parameters() if one.requires_grad]


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """The model computes what it computed before its adapters were trained."""
    layers = adapter_layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def save_adapters(model: nn.Module, folder: Path) -> None:
    """Writes `adapter_config.json` and `adapter_model.safetensors`, as peft does."""
    folder.mkdir(parents=True, exist_ok=True)
    config: Any = model.peft_config
    config[ADAPTER].save_pretrained(folder)
    tensors = {_peft_name(name): one.detach().contiguous() for name, one in trained(model)}
    save_file(tensors, folder / FILE, metadata={"format": "pt"})


def load_adapters(model: nn.Module, folder: Path) -> None:
    """Takes over what `save_adapters` wrote for the same model and rank.

    Raises:
        ValueError: it is of another model or rank.
    """
    saved = load_file(folder / FILE)
    own = {_peft_name(name): one for name, one in trained(model)}
    if {n: t.shape for n, t in saved.items()} != {n: t.shape for n, t in own.items()}:
        raise ValueError("its adapter is of another shape")
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(saved[name])


def _peft_name(name: str) -> str:
    return f"base_model.model.{name}".replace(f".{ADAPTER}.", ".")

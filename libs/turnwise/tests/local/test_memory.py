"""Predicted memory against what torch really keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from turnwise.config import ConfigError
from turnwise.local import attention
from turnwise.local.attention import plan
from turnwise.local.forward import prepare
from turnwise.local.memory import ModelShape, memory_line, predict_memory
from turnwise.local.options import TrainOptions
from turnwise.local.policy_files import ModelConfig

TOKENS = 256
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def model_of(family: str, **changes: Any) -> Any:
    config, make = FAMILIES[family]
    sizes: dict[str, Any] = {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    made: Any = make(config(**{**sizes, **changes}))
    return made


def options(**changes: Any) -> TrainOptions:
    given = {"max_tokens_per_gpu": TOKENS, "rollout_max_context_len": TOKENS, "dtype": "bfloat16"}
    return TrainOptions(**{**given, **changes})


class Flash(torch.autograd.Function):
    """Keeps what FlashAttention keeps, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = q.clone()
        ctx.save_for_backward(q, k, v, out, torch.zeros(q.shape[1], q.shape[0]))
        return out


def kept_bytes(work: Callable[[], Any], model: Any) -> int:
    """What autograd keeps of `work`, each memory once, weights left out."""
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    seen: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = work()
    assert result is not None
    return sum(seen.values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_counted_as_transformers_has_them(family: str, tied: bool) -> None:
    model = model_of(family, tie_word_embeddings=tied)
    assert ModelShape.of(model.config).parameters == sum(p.numel() for p in model.parameters())


def test_the_sizes_are_read_from_a_folder_too() -> None:
    read = ModelConfig(
        model_type="qwen3", vocab_size=512, hidden_size=128, intermediate_size=384,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = model_of("qwen3", head_dim=32, tie_word_embeddings=True)
    assert ModelShape.of(read) == ModelShape.of(model.config)
    with pytest.raises(ConfigError, match="vocab_size is missing"):
        ModelShape.of(ModelConfig(model_type="qwen3", hidden_size=1, num_attention_heads=1,
                                  num_hidden_layers=1, intermediate_size=1))  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_are_what_autograd_keeps(
    family: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_flash", lambda: lambda q, k, v, *_, **__: Flash.apply(q, k, v))
    model = model_of(family).to(getattr(torch, dtype))
    prepare(model)
    ids = np.arange(TOKENS, dtype=np.int32)
    bounds = np.array([0, 100, TOKENS], np.int32)
    made = plan(ids, bounds, torch.device("cpu"), "varlen")

    def work() -> Any:
        return model.model(
            input_ids=torch.from_numpy(ids.astype(np.int64))[None],
            position_ids=torch.arange(TOKENS)[None],
            attention_mask=torch.zeros(1, 1, 1, 1),
            use_cache=False,
            packed=made,
        )

    predicted = predict_memory(ModelShape.of(model.config), options(dtype=dtype)).parts
    assert predicted["activations"] == pytest.approx(kept_bytes(work, model), rel=0.05)


def test_each_option_takes_away_what_it_is_for() -> None:
    shape = ModelShape.of(model_of("qwen3").config)

    def parts(**changes: Any) -> dict[str, int]:
        return dict(predict_memory(shape, options(**changes), embedded_engine=False).parts)

    plain, count = parts(), shape.parameters
    assert (plain["weights"], plain["masters"], plain["optimizer"]) == (
        2 * count, 4 * count, 8 * count
    )  # fmt: skip
    assert "reference" not in plain and "engine" not in plain
    exact = parts(dtype="float32")
    assert exact["weights"] == 4 * count and "masters" not in exact
    offloaded = parts(optimizer_cpu_offload=True)
    assert "masters" not in offloaded and "optimizer" not in offloaded
    assert parts(optimizer="adam8bit")["optimizer"] < plain["optimizer"] / 3
    assert parts(recompute_granularity="full")["activations"] < plain["activations"] / 2
    assert parts(log_probs_chunk_size=16)["logits"] < plain["logits"]
    assert parts(use_kl_loss=True)["reference"] == 2 * count
    adapters = parts(lora_rank=4, use_kl_loss=True)
    assert adapters["gradients"] == 4 * shape.adapters(4) and "reference" not in adapters
    assert predict_memory(shape, options()).parts["engine"] > 2 * count


def test_a_card_too_small_is_told_with_the_numbers() -> None:
    shape = ModelShape.of(model_of("qwen3").config)
    estimate = predict_memory(shape, options())
    assert memory_line(estimate, estimate.total).verdict == "ok"
    line = memory_line(estimate, estimate.total - 1)
    assert line.verdict == "FAIL" and "--recompute-granularity full" in line.remedy
    assert "weights" in line.found and "GB are free" in line.found

"""The benchmark of the trainer runs, on a model of no size."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.one_gpu.exact import exactness
from benchmarks.one_gpu.shapes import Workload
from benchmarks.one_gpu.trainer import agreement, measure, measure_padded

WORKLOAD = Workload(start=24, task=8, turns=2, sampled=8, answer=6, row=512)


def model() -> Any:
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
        )
    )  # fmt: skip


def test_a_common_start_is_computed_once_and_the_loss_is_the_same() -> None:
    found = {
        way: measure(model, way, WORKLOAD, "cpu", steps=1)
        for way in ("bfloat16", "recompute", "no common start", "offload")
    }
    plain = found["bfloat16"]
    assert plain["computed"] < plain["tokens"] == found["no common start"]["computed"]
    assert found["offload"]["loss"] == plain["loss"] == found["recompute"]["loss"]
    assert found["no common start"]["loss"] == pytest.approx(plain["loss"], abs=0.05)
    padded = measure_padded(model, WORKLOAD, "cpu", recompute=False, steps=1)
    assert padded["loss"] == pytest.approx(plain["loss"], abs=0.05)


def test_kernels_agree() -> None:
    found = agreement(model, WORKLOAD, "cpu")
    assert found["padded against sdpa"]["largest"] < 0.1
    assert found["padded against sdpa"]["gradient"] < 0.1


def test_on_a_cpu_all_is_exact_and_offloading_changes_nothing() -> None:
    found = exactness(model, WORKLOAD, "cpu")
    assert found["gradients"] == {"varlen": 0, "sdpa": 0}
    assert found["update"] == {"plain again": 0, "offload": 0}
    for way in ("plain again", "offload"):
        assert set(found["same gradients"][way].values()) == {0}

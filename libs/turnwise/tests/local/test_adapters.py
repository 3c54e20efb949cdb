"""Adapters: the policy that they start from, what leaves the trainer, what comes back."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
from turnwise.config import ConfigError
from turnwise.local.adapters import (
    add_adapters,
    load_adapters,
    save_adapters,
    trained,
    without_adapters,
)
from turnwise.local.weights import merged, save_model, weights_for_engine

Make = Callable[..., Any]
IDS = torch.arange(3, 20)[None]


def adapted(model: Any, seed: int = 1) -> Any:
    """With adapters that do something."""
    add_adapters(model, rank=4, alpha=8.0, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for _, weight in trained(model):
        with torch.no_grad():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return model


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=IDS).logits
    return found


def test_a_plain_model_leaves_as_it_is(make_policy: Make) -> None:
    model = make_policy(tie_word_embeddings=True)
    own = dict(model.named_parameters())
    found = dict(weights_for_engine(model))
    assert found.keys() == own.keys()
    assert all(found[name] is not own[name] for name in own)
    assert all(torch.equal(found[name], own[name]) for name in own)
    with merged(model), without_adapters(model):
        assert trained(model) == list(own.items())


def test_fresh_adapters_change_nothing_and_are_all_that_is_trained(make_policy: Make) -> None:
    model = make_policy()
    before = logits(model)
    state = torch.get_rng_state()
    add_adapters(model, rank=4, alpha=8.0, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(logits(model), before)
    names = [name for name, _ in trained(model)]
    assert len(names) == 2 * 2 * 7 and all(".lora_" in name for name in names)
    again = make_policy()
    add_adapters(again, rank=4, alpha=8.0, seed=1)
    pairs = zip(trained(model), trained(again), strict=True)
    assert all(torch.equal(one, other) for (_, one), (_, other) in pairs)


def test_merged_weights_compute_what_the_adapters_do(make_policy: Make) -> None:
    plain = make_policy()
    model = adapted(make_policy())
    expected = logits(model)
    assert not torch.allclose(expected, logits(plain), atol=1e-2)
    with without_adapters(model):
        assert torch.equal(logits(model), logits(plain))
    found = dict(weights_for_engine(model))
    assert found.keys() == dict(plain.named_parameters()).keys()
    receiver = make_policy(seed=5)
    receiver.load_state_dict(found)
    torch.testing.assert_close(logits(receiver), expected, atol=1e-4, rtol=0)
    base = model.model.layers[0].self_attn.q_proj.base_layer.weight
    before = base.detach().clone()
    with merged(model):
        assert torch.equal(
            model.model.layers[0].self_attn.q_proj.weight,
            found["model.layers.0.self_attn.q_proj.weight"],
        )
    assert torch.equal(base, before)


def test_an_export_is_a_plain_model_and_the_adapter_a_peft_one(
    make_policy: Make, tmp_path: Path
) -> None:
    model = adapted(make_policy())
    expected = logits(model)
    save_model(model, tmp_path)
    save_adapters(model, tmp_path / "adapter")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(loaded), expected, atol=1e-4, rtol=0)
    by_peft = PeftModel.from_pretrained(make_policy(), tmp_path / "adapter")
    torch.testing.assert_close(logits(by_peft), expected, atol=1e-5, rtol=0)
    again = adapted(make_policy(), seed=7)
    load_adapters(again, tmp_path / "adapter")
    assert torch.equal(logits(again), expected)
    other = make_policy()
    add_adapters(other, rank=2, alpha=8.0, seed=1)
    with pytest.raises(ValueError, match="another shape"):
        load_adapters(other, tmp_path / "adapter")


def test_without_peft_they_are_refused(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "peft":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="--lora-rank needs the package peft"):
        add_adapters(make_policy(), rank=4, alpha=8.0, seed=1)

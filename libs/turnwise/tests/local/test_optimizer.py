"""AdamW over weights of any precision."""

from __future__ import annotations

import builtins
import gc
import importlib.util
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from turnwise.config import ConfigError
from turnwise.local.optimizer import PolicyOptimizer

SETTINGS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.01}
NAMES = ["adam"] + (["adam8bit"] if importlib.util.find_spec("bitsandbytes") else [])


def weights(dtype: torch.dtype = torch.bfloat16) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(64, 96), (96,), (3, 5)]
    return [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


def backward(own: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scales = [torch.randn(one.shape, generator=generator) for one in own]
    sum((one.float() * s).sum() for one, s in zip(own, scales, strict=True)).backward()  # type: ignore[union-attr]


def steps(own: list[nn.Parameter], optimizer: PolicyOptimizer, seeds: range) -> list[Tensor]:
    for seed in seeds:
        optimizer.zero_grad()
        backward(own, seed)
        backward(own, seed + 100)
        optimizer.clip(0.5)
        optimizer.step()
    return [one.detach().clone() for one in own]


def test_a_step_that_bfloat16_cannot_hold_is_not_lost() -> None:
    own = [nn.Parameter(torch.ones(4, dtype=torch.bfloat16))]
    optimizer = PolicyOptimizer(own, **{**SETTINGS, "lr": 1e-4, "weight_decay": 0.0})
    moved = []
    for _ in range(60):
        optimizer.zero_grad()
        own[0].sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        moved.append(float(own[0][0].detach()))
    # Half a unit of bfloat16 below 1 is 0.002, twenty steps of 1e-4.
    assert moved[10] == 1.0
    assert moved[-1] == pytest.approx(1 - 60e-4, abs=2e-3) and moved[-1] < 1.0


def test_masters_step_as_float32_weights_do() -> None:
    rounded = weights()
    exact = [nn.Parameter(one.detach().float()) for one in rounded]
    mine = PolicyOptimizer(rounded, **SETTINGS)
    torch_own = torch.optim.AdamW(exact, **SETTINGS)
    for seed in range(5):
        mine.zero_grad()
        torch_own.zero_grad()
        # The loss is linear, so that rounded and exact weights have the same gradient but for its
        # own rounding.
        for one in (rounded, exact):
            backward(one, seed)
        mine.step()
        torch_own.step()
    for one, other in zip(mine.state_dict()["masters"], exact, strict=True):
        torch.testing.assert_close(one, other.detach(), atol=2e-4, rtol=0)
    for one, master in zip(rounded, mine.state_dict()["masters"], strict=True):
        assert torch.equal(one.detach(), master.bfloat16())


def test_gradients_of_many_rows_are_summed_in_float32() -> None:
    own = [nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))]
    optimizer = PolicyOptimizer(own, **SETTINGS)
    for _ in range(1000):
        own[0].sum().backward()  # type: ignore[no-untyped-call]
    assert own[0].grad is None
    assert optimizer.clip(0.0) == 1000.0


def test_weights_that_nobody_holds_are_freed_with_their_masters() -> None:
    own = weights()
    optimizer = PolicyOptimizer(own, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    steps(own, optimizer, range(2))
    left = [weakref.ref(own[0]), weakref.ref(optimizer)]
    del own, optimizer
    gc.collect()
    assert [one() for one in left] == [None, None]


def test_in_float32_it_is_torch_adamw_bit_for_bit() -> None:
    one, other = weights(torch.float32), weights(torch.float32)
    mine, torch_own = PolicyOptimizer(one, **SETTINGS), torch.optim.AdamW(other, **SETTINGS)
    for seed in range(3):
        mine.zero_grad()
        torch_own.zero_grad(set_to_none=True)
        backward(one, seed)
        backward(other, seed)
        norm = float(nn.utils.clip_grad_norm_(other, 0.5))
        assert mine.clip(0.5) == norm
        mine.step()
        torch_own.step()
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert mine.state_dict().keys() == torch_own.state_dict().keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_is_scaled_to_the_norm_that_is_asked_for(dtype: torch.dtype) -> None:
    own = weights(dtype)
    optimizer = PolicyOptimizer(own, **SETTINGS)
    backward(own, 0)
    norm = optimizer.clip(0.5)
    assert norm > 0.5
    assert optimizer.clip(0.0) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offloaded_it_gives_the_same_numbers(dtype: torch.dtype, name: Any) -> None:
    found = []
    for offload in (False, True):
        own = weights(dtype)
        optimizer = PolicyOptimizer(own, **SETTINGS, name=name, offload=offload)
        found.append(steps(own, optimizer, range(4)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_goes_on_from_its_state_bit_for_bit(
    dtype: torch.dtype, offload: bool, name: Any
) -> None:
    def make(own: list[nn.Parameter]) -> PolicyOptimizer:
        return PolicyOptimizer(own, **SETTINGS, name=name, offload=offload)

    whole = weights(dtype)
    expected = steps(whole, make(whole), range(6))
    first = weights(dtype)
    before = make(first)
    saved = steps(first, before, range(3))
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    file.seek(0)
    second = [nn.Parameter(one) for one in saved]
    after = make(second)
    after.load_state_dict(torch.load(file, weights_only=True))
    found = steps(second, after, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_state_of_another_precision_or_model_is_refused() -> None:
    exact, rounded = weights(torch.float32), weights()
    state = PolicyOptimizer(exact, **SETTINGS).state_dict()
    with pytest.raises(ValueError, match="another precision"):
        PolicyOptimizer(rounded, **SETTINGS).load_state_dict(state)
    other = [nn.Parameter(one.detach()[:2]) for one in rounded]
    state = PolicyOptimizer(other, **SETTINGS).state_dict()
    with pytest.raises(ValueError, match="other shapes"):
        PolicyOptimizer(rounded, **SETTINGS).load_state_dict(state)


def test_eight_bits_without_their_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "bitsandbytes":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="adam8bit needs the package bitsandbytes"):
        PolicyOptimizer(weights(), **SETTINGS, name="adam8bit")

"""Attention over a packed row: both kernels see the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tokendelta
import torch
from torch import Tensor
from turnwise.local import attention
from turnwise.local.attention import packed_kernel, plan, varlen_attention
from turnwise.local.forward import prepare, token_logprobs

Make = Callable[..., Any]


def flash(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int,
    *, scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
) -> Tensor:  # fmt: skip
    """What torch's varlen attention computes, in plain words: [T, heads, D], a segment at a time.

    The causal window ends at the last query and the last key.
    """
    assert window_size == (-1, 0)
    outputs = []
    for segment in range(len(cu_q) - 1):
        queries = q[cu_q[segment] : cu_q[segment + 1]]
        own = slice(int(cu_k[segment]), int(cu_k[segment + 1]))
        assert len(queries) <= max_q and own.stop - own.start <= max_k
        group = q.shape[1] // k.shape[1]
        keys, values = (part[own].repeat_interleave(group, 1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * (scale or q.shape[-1] ** -0.5)
        visible = torch.ones(scores.shape[1:], dtype=torch.bool).tril(len(keys) - len(queries))
        chances = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", chances, values))
    return torch.cat(outputs)


@pytest.mark.parametrize("system", [0, 24])
def test_the_varlen_kernel_gives_the_values_and_gradients_of_sdpa(
    make_policy: Make, make_samples: Make, system: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_policy()
    prepare(model)
    (batch,) = tokendelta.pack(make_samples(9, system=system), max_tokens=1000)

    def run() -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        found, _ = token_logprobs(model, batch)
        (found * torch.linspace(-1, 2, len(found))).sum().backward()  # type: ignore[no-untyped-call]
        return found.detach(), [weight.grad.clone() for weight in model.parameters()]

    expected, expected_gradients = run()
    monkeypatch.setattr(attention, "packed_kernel", lambda *_: "varlen")
    monkeypatch.setattr(attention, "_flash", lambda: flash)
    found, gradients = run()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    for one, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * float(other.abs().max()), rtol=1e-4)


def test_bounds_of_the_varlen_kernel_say_what_is_computed(make_samples: Make) -> None:
    samples = make_samples(8, system=24)
    (batch,) = tokendelta.pack(samples, max_tokens=1000)
    made = plan(batch.ids, batch.cu_seqlens, torch.device("cpu"), "varlen")
    bounds = made.varlen
    assert bounds is not None and bounds.keys is not None and made.segments == ()
    assert bounds.cu_keys.tolist() == batch.cu_seqlens.tolist()
    assert bounds.cu_queries[-1] == len(made.tokens) < len(batch.ids) == len(bounds.keys)
    (alone,) = tokendelta.pack(make_samples(1), max_tokens=1000)
    bounds = plan(alone.ids, alone.cu_seqlens, torch.device("cpu"), "varlen").varlen
    assert bounds is not None and bounds.keys is None


def test_a_common_start_collects_its_gradient_in_float32() -> None:
    count = 1000
    values = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16, requires_grad=True)
    places = torch.zeros(count, dtype=torch.int64)
    one = torch.tensor([0, 1], dtype=torch.int32)
    bounds = attention.Varlen(places, one, one * count, 1, count)

    def summed(
        q: Tensor, k: Tensor, v: Tensor, *others: Any, scale: Any, window_size: Any
    ) -> Tensor:
        return q * 0 + v.sum(0)

    query = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    varlen_attention(query, values, values, bounds, None, summed).sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    # In bfloat16 256 ones and another are 256.
    assert values.grad.unique().tolist() == [1000.0]


def test_a_cpu_and_full_precision_take_sdpa() -> None:
    assert packed_kernel(torch.device("cpu"), torch.bfloat16, 64) == "sdpa"
    assert packed_kernel(torch.device("cuda"), torch.float32, 64) == "sdpa"
    assert packed_kernel(torch.device("cuda"), torch.bfloat16, 512) == "sdpa"


def test_recomputed_layers_give_the_same_gradients(make_policy: Make, make_samples: Make) -> None:
    (batch,) = tokendelta.pack(make_samples(5), max_tokens=1000)
    found = []
    for recompute in (False, True):
        model = make_policy()
        prepare(model, recompute=recompute)
        model.train()
        logprobs, _ = token_logprobs(model, batch)
        logprobs.sum().backward()  # type: ignore[no-untyped-call]
        found.append([weight.grad for weight in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))

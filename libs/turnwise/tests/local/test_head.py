"""Log-probs at the head: chunks against the whole, in every precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from turnwise.local import head
from turnwise.local.head import head_logprobs


def case(dtype: torch.dtype, count: int = 23) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(count, 12, generator=generator, dtype=torch.float64)
    weight = torch.randn(37, 12, generator=generator, dtype=torch.float64)
    targets = torch.randint(37, (count,), generator=generator)
    return (
        hidden.to(dtype).requires_grad_(),
        weight.to(dtype).requires_grad_(),
        targets,
    )


def reference(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    distribution = (hidden.double() @ weight.double().T / temperature).log_softmax(-1)
    entropy = -(distribution.exp() * distribution).sum(-1)
    return distribution.gather(-1, targets[:, None])[:, 0], entropy


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize(
    ("dtype", "chunk_size", "tolerance"),
    [
        (torch.float64, 1, 1e-12),
        (torch.float64, 5, 1e-12),
        (torch.float64, 100, 1e-12),
        (torch.float32, 5, 1e-5),
        (torch.float32, None, 1e-5),
        (torch.bfloat16, 5, 0.05),
    ],
)
def test_chunks_give_the_values_and_gradients_of_the_whole(
    dtype: torch.dtype, chunk_size: int | None, tolerance: float, entropy_grad: bool,
    temperature: float,
) -> None:  # fmt: skip
    hidden, weight, targets = case(dtype)
    expected, expected_entropy = reference(hidden, weight, targets, temperature)
    found, entropy = head_logprobs(
        hidden, weight, targets,
        temperature=temperature, entropy_grad=entropy_grad, chunk_size=chunk_size,
    )  # fmt: skip
    assert entropy.requires_grad == entropy_grad
    close: dict[str, Any] = {"atol": tolerance * 10, "rtol": tolerance, "check_dtype": False}
    torch.testing.assert_close(found, expected, **close)
    torch.testing.assert_close(entropy, expected_entropy, **close)
    scale = torch.linspace(-1, 2, len(targets))
    terms = [(found, expected)] + ([(entropy, expected_entropy)] if entropy_grad else [])
    mine = torch.autograd.grad(sum((scale * a).sum() for a, _ in terms), (hidden, weight))
    whole = torch.autograd.grad(sum((scale * b).sum() for _, b in terms), (hidden, weight))
    for one, other in zip(mine, whole, strict=True):
        torch.testing.assert_close(one, other, **close)


def test_backward_passes_the_numerical_check() -> None:
    hidden, weight, targets = case(torch.float64, count=4)

    def both(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return head_logprobs(
            hidden, weight, targets, temperature=0.8, entropy_grad=True, chunk_size=3
        )

    assert torch.autograd.gradcheck(both, (hidden, weight))


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight, targets = case(torch.float32)
    found, _ = head_logprobs(hidden, weight.detach(), targets, chunk_size=4)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None and weight.grad is None


def test_the_gradient_of_the_head_is_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = torch.ones(512, 4, dtype=torch.bfloat16)
    weight = torch.zeros(3, 4, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(512, dtype=torch.int64)
    found, _ = head_logprobs(hidden, weight, targets, chunk_size=1)
    found.sum().backward()  # type: ignore[no-untyped-call]
    # Each term is 2/3; in bfloat16 the sum would stand still at 256 terms.
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad[0].float(), torch.full((4,), 341.0), atol=2, rtol=0)


def test_without_a_size_a_chunk_has_a_bounded_number_of_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 100)
    assert head.chunk_tokens(37, None) == 2
    assert head.chunk_tokens(1000, None) == 1
    assert head.chunk_tokens(37, 9) == 9

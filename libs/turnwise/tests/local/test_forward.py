"""Packed log-probs against transformers, one padded sequence at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tokendelta
import torch
from torch import Tensor
from turnwise.local import head
from turnwise.local.attention import plan
from turnwise.local.forward import prepare, token_logprobs

Make = Callable[..., Any]
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def padded_reference(
    model: Any, batch: tokendelta.MicroBatch, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropy of trained tokens from one right-padded batch of all segments."""
    bounds = batch.cu_seqlens.tolist()
    lengths = np.diff(batch.cu_seqlens)
    ids = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.int64)
    attention = torch.zeros_like(ids)
    for row, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        ids[row, : end - begin] = torch.from_numpy(batch.ids[begin:end].astype(np.int64))
        attention[row, : end - begin] = 1
    logits = (
        model(
            input_ids=ids.to(model.device), attention_mask=attention.to(model.device)
        ).logits.cpu()
        / temperature
    )
    distribution = logits.log_softmax(-1)
    logprobs, entropies = [], []
    for row, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        trained = torch.from_numpy(np.flatnonzero(batch.loss_mask[begin:end]))
        predicted = distribution[row, trained - 1]
        logprobs.append(predicted.gather(-1, ids[row, trained][:, None])[:, 0])
        entropies.append(-(predicted.exp() * predicted).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


def gradients(model: Any, value: Tensor) -> list[Tensor]:
    model.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("system", [0, 24])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_equal_the_padded_forward(
    make_policy: Make, make_samples: Make, system: int, temperature: float, device: str
) -> None:
    model = make_policy().to(device)
    (batch,) = tokendelta.pack(make_samples(9, system=system), max_tokens=1000)
    expected, expected_entropy = padded_reference(model, batch, temperature)
    weight = torch.linspace(-1, 2, len(expected))
    expected_gradients = gradients(model, ((expected + 0.3 * expected_entropy) * weight).sum())
    prepare(model)
    found, entropy = token_logprobs(model, batch, temperature=temperature, entropy_grad=True)
    found, entropy = found.cpu(), entropy.cpu()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy, expected_entropy, atol=1e-5, rtol=1e-5)
    found_gradients = gradients(model, ((found + 0.3 * entropy) * weight).sum())
    for one, other in zip(found_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * float(other.abs().max()), rtol=1e-4)


def test_a_head_in_chunks_gives_the_same_values_and_gradients(
    make_policy: Make, make_samples: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_policy()
    prepare(model)
    (batch,) = tokendelta.pack(make_samples(5), max_tokens=1000)
    whole, whole_entropy = token_logprobs(model, batch)
    whole_gradients = gradients(model, whole.sum())
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 259 * 7)
    parts, parts_entropy = token_logprobs(model, batch)
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=0)
    torch.testing.assert_close(parts_entropy, whole_entropy, atol=1e-5, rtol=0)
    for one, other in zip(gradients(model, parts.sum()), whole_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_start_in_common_is_computed_once(make_samples: Make) -> None:
    samples = make_samples(8, system=24)
    (batch,) = tokendelta.pack(samples, max_tokens=1000)
    made = plan(batch.ids, batch.cu_seqlens, torch.device("cpu"))
    responses = sum(sample.response_length for sample in samples)
    # One system part, one task a group of four, every response.
    assert len(made.tokens) == 24 + 2 * 9 + responses
    np.testing.assert_array_equal(batch.ids[made.tokens][made.place], batch.ids)


def test_identical_samples_are_computed_but_for_their_last_token_once(
    make_policy: Make, make_samples: Make
) -> None:
    model = make_policy()
    samples = make_samples(1) * 3
    (batch,) = tokendelta.pack(samples, max_tokens=1000)
    assert len(plan(batch.ids, batch.cu_seqlens, torch.device("cpu")).tokens) == (
        len(samples[0].ids) + 2
    )
    expected, _ = padded_reference(model, batch)
    prepare(model)
    found, _ = token_logprobs(model, batch)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_prepared_model_still_answers_other_calls_as_before(make_policy: Make) -> None:
    model = make_policy()
    ids = torch.randint(259, (3, 20), generator=torch.Generator().manual_seed(0))
    attention = torch.ones_like(ids)
    attention[1, 12:] = 0
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=attention).logits
        prepare(model)
        after = model(input_ids=ids, attention_mask=attention).logits
    torch.testing.assert_close(after[attention == 1], before[attention == 1], atol=1e-5, rtol=0)


def test_a_trained_first_token_is_refused(make_policy: Make, make_samples: Make) -> None:
    model = make_policy()
    prepare(model)
    (batch,) = tokendelta.pack(make_samples(1), max_tokens=1000)
    batch.loss_mask[0] = 1
    with pytest.raises(ValueError, match="first token of a segment"):
        token_logprobs(model, batch)

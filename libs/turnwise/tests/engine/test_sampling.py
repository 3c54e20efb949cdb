"""Draws follow the distribution, its limits, and the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from turnwise.engine.sampling import sample, uniforms

LOGITS = torch.log(torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05]))


def draw(
    count: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    ids, logprobs = sample(
        LOGITS.repeat(count, 1),
        torch.from_numpy(uniforms(1, 7, count)),
        torch.full((count,), temperature),
        (torch.full((count,), top_k), torch.full((count,), top_p)),
    )
    return ids.numpy(), logprobs.numpy()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.2, 0.15, 0.1, 0.05]),
        ({"temperature": 0.5}, np.array([0.25, 0.04, 0.0225, 0.01, 0.0025]) / 0.325),
        ({"top_k": 2}, [5 / 7, 2 / 7, 0, 0, 0]),
        ({"top_p": 0.8}, [0.5 / 0.85, 0.2 / 0.85, 0.15 / 0.85, 0, 0]),
        ({"top_p": 0.01}, [1, 0, 0, 0, 0]),
        # After top-k 0.5 and 0.2 are 0.714 and 0.286: the nucleus of 0.7 is the first alone.
        ({"top_k": 2, "top_p": 0.7}, [1, 0, 0, 0, 0]),
        ({"temperature": 0.0}, [1, 0, 0, 0, 0]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_should_be(options: dict, expected: list) -> None:  # type: ignore[type-arg]
    count = 20_000
    ids, _ = draw(count, **options)
    found = np.bincount(ids, minlength=5) / count
    np.testing.assert_allclose(found, expected, atol=4 * np.sqrt(0.25 / count))
    assert (found[np.asarray(expected) == 0] == 0).all()


def test_log_probs_are_those_before_top_p_and_top_k() -> None:
    ids, logprobs = draw(500, temperature=0.5, top_k=3, top_p=0.9)
    expected = (LOGITS / 0.5).log_softmax(-1).numpy()[ids]
    np.testing.assert_allclose(logprobs, expected, atol=1e-6)


def test_greedy_log_probs_are_those_of_temperature_one() -> None:
    ids, logprobs = draw(3, temperature=0.0)
    assert ids.tolist() == [0, 0, 0]
    np.testing.assert_allclose(logprobs, np.log(0.5), atol=1e-6)


@pytest.mark.parametrize("edge", [0.0, np.nextafter(1.0, 0.0)])
def test_the_edges_of_the_unit_interval_draw_allowed_tokens(edge: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    uniform = torch.tensor([edge], dtype=torch.float64)
    limits = (torch.tensor([2]), torch.tensor([1.0]))
    ids, _ = sample(logits, uniform, torch.ones(1), limits)
    assert ids.item() in (1, 2)


def test_draws_depend_on_seed_and_prompt_length_alone() -> None:
    np.testing.assert_array_equal(uniforms(3, 10, 8), uniforms(3, 10, 20)[:8])
    assert (uniforms(3, 10, 8) != uniforms(3, 11, 8)).all()
    assert (uniforms(3, 10, 8) != uniforms(4, 10, 8)).all()
    assert (uniforms(-1, 10, 8) != uniforms(1, 10, 8)).all()


def test_draws_are_pinned_so_that_old_runs_can_be_resumed() -> None:
    expected = [0.8726823809504244, 0.737566289960274]
    np.testing.assert_array_equal(uniforms(42, 100, 2), expected)

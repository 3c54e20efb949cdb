"""Importance correction: torch against the NumPy reference, and in the loss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import tokendelta
import torch
from turnwise.local.correction import Correction, correct
from turnwise.local.options import TrainOptions
from turnwise.local.update import TrainRow, UpdateSettings, policy_loss
from turnwise.objective import TisLevel, TisMode, clipped_policy_loss, importance_weights


def row(rollout: list[list[float]], old: list[float] | None) -> TrainRow:
    """Segments with these log-probs of the engine, all tokens trained but the first of each."""
    samples = [
        tokendelta.Sample(
            ids=np.arange(len(one) + 1, dtype=np.int32),
            prompt_length=1,
            loss_mask=np.ones(len(one), np.uint8),
            logprobs=np.array(one, np.float32),
            spans=(),
            weight=1.0,
        )
        for one in rollout
    ]
    (batch,) = tokendelta.pack(samples, max_tokens=1000)
    count = sum(len(one) for one in rollout)
    return TrainRow(
        batch=batch,
        advantages=np.linspace(-1, 2, count, dtype=np.float32),
        weights=np.full(count, 1 / count, np.float32),
        old_logprobs=None if old is None else np.array(old, np.float32),
    )


@pytest.mark.parametrize("mode", get_args(TisMode))
@pytest.mark.parametrize("level", get_args(TisLevel))
def test_weights_equal_the_numpy_reference(mode: TisMode, level: TisLevel) -> None:
    rng = np.random.default_rng(0)
    old, rollout = rng.uniform(-3, 0, 200), rng.uniform(-3, 0, 200)
    segment = np.sort(rng.integers(0, 60, 200))
    expected, expected_bounded = importance_weights(
        old, rollout, segment, low=0.5, high=1.5, mode=mode, level=level
    )
    found = correct(
        *(torch.from_numpy(one) for one in (old, rollout, segment)),
        Correction(low=0.5, high=1.5, mode=mode, level=level),
    )
    np.testing.assert_array_equal(found.bounded, expected_bounded)
    np.testing.assert_allclose(found.weights * found.kept, expected, rtol=1e-12)
    assert 0 < found.bounded.sum() < 200


def test_the_corrected_loss_equals_the_plain_one_times_its_weights() -> None:
    rng = np.random.default_rng(1)
    rollout = [rng.uniform(-2, 0, 3).tolist(), rng.uniform(-2, 0, 4).tolist()]
    old, new = rng.uniform(-2, 0, 7), rng.uniform(-2, 0, 7)
    made = row(rollout, old.tolist())
    segment = made.segments
    assert sorted(np.bincount(segment)) == [3, 4]
    settings = UpdateSettings(lr=1.0, correction=Correction(low=0.2, high=1.5))
    logprobs = torch.tensor(new, dtype=torch.float32, requires_grad=True)
    loss, told = policy_loss(logprobs, torch.zeros(7), made, settings)
    engine = made.rollout_logprobs.astype(float)
    weights, bounded = importance_weights(old, engine, segment, low=0.2, high=1.5)
    plain, _ = clipped_policy_loss(new, old, made.advantages.astype(float), 0.2, 0.2)
    assert float(loss) == pytest.approx((plain * weights).mean(), rel=1e-5)
    assert told.tis is not None and told.tis_bounded is not None
    np.testing.assert_allclose(told.tis, np.exp(old - engine), rtol=1e-5)
    np.testing.assert_array_equal(told.tis_bounded, bounded)


def test_a_masked_token_leaves_kl_and_entropy_too_and_no_denominator() -> None:
    made = replace(
        row([[-1.0, -1.0]], [-1.0, -3.0]), ref_logprobs=np.array([-1.5, -1.5], np.float32)
    )
    settings = UpdateSettings(
        lr=1.0, kl_loss_coef=0.5, entropy_coef=0.1, correction=Correction(low=0.5, mode="mask")
    )
    logprobs = torch.tensor([-1.0, -3.0])
    loss, told = policy_loss(logprobs, torch.tensor([2.0, 4.0]), made, settings)
    kl = math.expm1(-0.5) + 0.5
    assert float(loss) == pytest.approx(0.5 * (1.0 + 0.5 * kl - 0.1 * 2.0), rel=1e-5)
    assert told.tis_bounded is not None and told.tis_bounded.tolist() == [False, True]


def test_the_first_update_takes_its_own_forward_pass_as_old() -> None:
    made = row([[-1.0, -2.0]], None)
    settings = UpdateSettings(lr=1.0, correction=Correction(high=1.2))
    logprobs = torch.tensor([-0.5, -2.5], requires_grad=True)
    loss, told = policy_loss(logprobs, torch.zeros(2), made, settings)
    weights = np.array([1.2, math.exp(-0.5)])
    assert float(loss.detach()) == pytest.approx(-(made.advantages * weights).mean(), rel=1e-5)
    assert not told.clipped.any()
    loss.backward()  # type: ignore[no-untyped-call]
    # The weight carries no gradient: d loss / d logprob is -A w / 2 where the ratio is 1.
    assert logprobs.grad is not None
    np.testing.assert_allclose(logprobs.grad, -made.advantages * weights / 2, rtol=1e-5)


def test_a_ratio_that_would_overflow_is_held() -> None:
    made = correct(
        torch.tensor([0.0]), torch.tensor([-500.0]), torch.tensor([0]), Correction(mode="mask")
    )
    assert torch.isfinite(made.weights).all() and not made.kept.any()


@pytest.mark.parametrize(
    ("given", "low"),
    [({}, 0.0), ({"tis_mode": "mask"}, 0.5), ({"tis_mode": "mask", "tis_clip_low": 0.1}, 0.1)],
)
def test_the_lower_bound_is_that_of_slime_where_it_is_not_given(
    given: dict[str, Any], low: float
) -> None:
    correction = TrainOptions(use_tis=True, **given).update_settings().correction
    assert correction is not None
    assert (correction.low, correction.high) == (low, 2.0)
    assert TrainOptions(**given).update_settings().correction is None

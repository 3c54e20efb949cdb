"""The torch loss against hand-computed numbers and the NumPy objective; one update as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tokendelta
import torch
from turnwise import objective
from turnwise.command import RunError
from turnwise.local.update import (
    TrainRow,
    Updater,
    UpdateSettings,
    differences,
    policy_loss,
    train_rows,
)

Make = Callable[..., Any]


def row(
    old: list[float], advantages: list[float], weights: list[float], ref: list[float] | None = None
) -> TrainRow:
    count = len(old)
    sample = tokendelta.Sample(
        ids=np.arange(count + 1, dtype=np.int32),
        prompt_length=1,
        loss_mask=np.ones(count, np.uint8),
        logprobs=np.array(old, np.float32),
        spans=(),
        weight=1.0,
    )
    return TrainRow(
        batch=tokendelta.pack([sample], max_tokens=1000)[0],
        advantages=np.array(advantages, np.float32),
        weights=np.array(weights, np.float32),
        old_logprobs=np.array(old, np.float32),
        ref_logprobs=None if ref is None else np.array(ref, np.float32),
    )


def test_the_loss_equals_hand_computed_numbers() -> None:
    # Ratios 1.5, 0.5, 1.5, 0.5, 1.1: those that would gain by leaving [0.8, 1.28] are held.
    ratios = np.array([1.5, 0.5, 1.5, 0.5, 1.1])
    made = row([-1.0] * 5, [1, 1, -1, -1, 2], [0.2] * 5)
    logprobs = torch.tensor(-1.0 + np.log(ratios), dtype=torch.float32, requires_grad=True)
    settings = UpdateSettings(lr=1e-3, eps_clip=0.2, eps_clip_high=0.28)
    loss, told = policy_loss(logprobs, torch.zeros(5), made, settings)
    assert loss.item() == pytest.approx(0.2 * (-1.28 - 0.5 + 1.5 + 0.8 - 2.2), abs=1e-6)
    assert told.clipped.tolist() == [True, False, False, True, False]
    assert told.kl.tolist() == [0.0] * 5
    loss.backward()  # type: ignore[no-untyped-call]
    # d/dlogp of -A*r is -A*r; nothing where the ratio is held.
    torch.testing.assert_close(
        logprobs.grad, 0.2 * torch.tensor([0.0, -0.5, 1.5, 0.0, -2.2]), atol=1e-6, rtol=0
    )


def test_kl_and_entropy_enter_the_loss_with_their_coefficients() -> None:
    made = row([-1.0, -1.0], [0, 0], [0.5, 0.5], ref=[-1.0 + math.log(2), -1.0])
    logprobs = torch.tensor([-1.0, -1.0])
    settings = UpdateSettings(lr=1e-3, kl_loss_coef=0.1, entropy_coef=0.01)
    loss, told = policy_loss(logprobs, torch.tensor([2.0, 4.0]), made, settings)
    k3 = 2 - 1 - math.log(2)
    assert told.kl.tolist() == pytest.approx([k3, 0.0], abs=1e-6)
    assert float(loss) == pytest.approx(0.1 * 0.5 * k3 - 0.01 * 3.0, abs=1e-6)


def test_the_kl_is_clamped_as_slime_does() -> None:
    made = row([-9.0], [0], [1.0], ref=[-1.0])
    settings = UpdateSettings(lr=1e-3, kl_loss_coef=1.0)
    loss, told = policy_loss(torch.tensor([-9.0]), torch.zeros(1), made, settings)
    assert float(loss) == told.kl.item() == 10.0


def test_the_loss_equals_the_numpy_objective_on_random_numbers() -> None:
    rng = np.random.default_rng(0)
    old, new, ref = (rng.uniform(-3, 0, 200) for _ in range(3))
    advantages, weights = rng.normal(size=200), rng.uniform(size=200)
    made = row(old.tolist(), advantages.tolist(), weights.tolist(), ref.tolist())
    settings = UpdateSettings(lr=1e-3, eps_clip=0.1, kl_loss_coef=0.3)
    found, told = policy_loss(
        torch.from_numpy(new.astype(np.float32)), torch.zeros(200), made, settings
    )
    expected, expected_clipped = objective.clipped_policy_loss(new, old, advantages, 0.1, 0.1)
    expected_kl = objective.low_var_kl(new, ref)
    np.testing.assert_allclose(told.kl, expected_kl, atol=1e-5)
    np.testing.assert_array_equal(told.clipped, expected_clipped)
    assert float(found) == pytest.approx((weights * (expected + 0.3 * expected_kl)).sum(), rel=1e-4)


def test_scalars_of_a_sample_lie_along_its_trained_tokens(make_samples: Make) -> None:
    samples = make_samples(7)
    rows = train_rows(samples, np.arange(7.0), 10 + np.arange(7.0), max_tokens=90)
    assert len(rows) > 1
    seen = []
    for made in rows:
        bounds = made.batch.cu_seqlens
        expected = np.repeat(
            made.batch.sample_index,
            [
                int(made.batch.loss_mask[a:b].sum())
                for a, b in zip(bounds, bounds[1:], strict=False)
            ],
        )
        np.testing.assert_array_equal(made.advantages, expected)
        np.testing.assert_array_equal(made.weights, 10 + expected)
        np.testing.assert_array_equal(made.old_logprobs, made.rollout_logprobs)
        assert not np.isnan(made.old_logprobs).any()
        seen += made.batch.sample_index.tolist()
    assert sorted(seen) == list(range(7))


def test_lengths_that_differ_are_refused(make_samples: Make) -> None:
    with pytest.raises(ValueError, match="2 samples, 1 advantages, 2 weights"):
        train_rows(make_samples(2), [1.0], [1.0, 1.0], max_tokens=90)


def test_an_update_does_not_depend_on_how_samples_are_packed(
    make_policy: Make, make_samples: Make
) -> None:
    samples = make_samples(8)
    outcomes = []
    for max_tokens in (60, 1000):
        model = make_policy()
        updater = Updater(model, UpdateSettings(lr=1e-2))
        rows = train_rows(samples, np.linspace(-1, 1, 8), np.full(8, 0.01), max_tokens=max_tokens)
        trainer = updater.logprobs(rows)
        rows = [replace(made, old_logprobs=old) for made, old in zip(rows, trainer, strict=True)]
        outcomes.append((updater.update(rows), model.model.layers[0].mlp.up_proj.weight.detach()))
    (one, one_weight), (other, other_weight) = outcomes
    assert one.trained_tokens == other.trained_tokens
    assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-4)
    assert one.loss == pytest.approx(other.loss, abs=1e-6)
    torch.testing.assert_close(one_weight, other_weight, atol=1e-5, rtol=0)


def test_an_update_raises_what_was_good_and_lowers_what_was_bad(
    make_policy: Make, make_samples: Make
) -> None:
    model = make_policy()
    updater = Updater(model, UpdateSettings(lr=1e-3))
    rows = train_rows(make_samples(2, system=0), [1.0, -1.0], [0.05, 0.05], max_tokens=1000)
    before = updater.logprobs(rows)
    rows = [replace(rows[0], old_logprobs=before[0])]
    metrics = updater.update(rows)
    (change,) = (after - b for after, b in zip(updater.logprobs(rows), before, strict=True))
    assert change[rows[0].advantages > 0].mean() > 0 > change[rows[0].advantages < 0].mean()
    assert metrics.clip_fraction == 0
    assert metrics.grad_norm > 0
    assert 0 < metrics.entropy < math.log(259)
    assert metrics.trained_tokens == len(before[0])


def test_the_largest_difference_between_rollout_and_trainer_is_reported(
    make_policy: Make, make_samples: Make
) -> None:
    updater = Updater(make_policy(), UpdateSettings(lr=0.0))
    rows = train_rows(make_samples(4), np.ones(4), np.full(4, 0.1), max_tokens=70)
    trainer = updater.logprobs(rows)
    expected = max(
        float(np.abs(made.rollout_logprobs - own).max())
        for made, own in zip(rows, trainer, strict=True)
    )
    assert differences(rows, trainer).max() == pytest.approx(expected)
    assert updater.update(rows).max_logprob_difference == pytest.approx(expected, abs=1e-5)


def test_the_gradient_is_clipped_to_its_norm(make_policy: Make, make_samples: Make) -> None:
    rows = train_rows(make_samples(4), np.ones(4), np.full(4, 5.0), max_tokens=1000)
    norms = {}
    for clip in (0.0, 0.5):
        updater = Updater(make_policy(), UpdateSettings(lr=1e-3, clip_grad=clip))
        reported = updater.update(rows).grad_norm
        left = torch.stack([p.grad.norm() for p in updater.parameters if p.grad is not None]).norm()
        norms[clip] = (reported, float(left))
    assert norms[0.0][0] == pytest.approx(norms[0.0][1], rel=1e-5)
    assert norms[0.5] == pytest.approx((norms[0.0][0], 0.5), rel=1e-3)


def test_an_update_that_is_not_finite_leaves_the_weights_alone(
    make_policy: Make, make_samples: Make
) -> None:
    model = make_policy()
    updater = Updater(model, UpdateSettings(lr=1e-2))
    rows = train_rows(make_samples(2), [np.nan, 1.0], [0.1, 0.1], max_tokens=1000)
    before = model.lm_head.weight.detach().clone()
    with pytest.raises(RunError, match="not finite"):
        updater.update(rows)
    torch.testing.assert_close(model.lm_head.weight.detach(), before, atol=0, rtol=0)


def test_a_kl_loss_without_a_reference_is_refused(make_policy: Make, make_samples: Make) -> None:
    updater = Updater(make_policy(), UpdateSettings(lr=1e-2, kl_loss_coef=0.1))
    rows = train_rows(make_samples(1), [1.0], [0.1], max_tokens=1000)
    with pytest.raises(ValueError, match="no ref_logprobs"):
        updater.update(rows)


def test_an_update_of_nothing_is_refused(make_policy: Make) -> None:
    with pytest.raises(ValueError, match="at least one trained token"):
        Updater(make_policy(), UpdateSettings(lr=1e-2)).update([])

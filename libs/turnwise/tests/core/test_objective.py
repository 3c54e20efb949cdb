"""The objective against numbers worked out by hand."""

import math
import random
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.objective import (
    Floats,
    Objective,
    clipped_policy_loss,
    importance_weights,
    low_var_kl,
    rollout_mask_sums,
    token_weights,
)


def test_the_clip_holds_the_ratio_only_where_it_would_help() -> None:
    # ratios 1.5, 1.5, 0.5, 0.5 with bounds [0.8, 1.28]
    new = np.log([1.5, 1.5, 0.5, 0.5])
    advantage = np.array([1.0, -1.0, 1.0, -1.0])
    loss, clipped = clipped_policy_loss(new, np.zeros(4), advantage, 0.2, 0.28)
    np.testing.assert_allclose(loss, [-1.28, 1.5, -0.5, 0.8])
    assert clipped.tolist() == [True, False, False, True]


def test_on_policy_loss_is_minus_the_advantage() -> None:
    logprobs = np.array([-0.1, -2.0])
    loss, clipped = clipped_policy_loss(logprobs, logprobs, np.array([0.7, -0.3]), 0.2, 0.2)
    np.testing.assert_allclose(loss, [-0.7, 0.3])
    assert not clipped.any()


def test_low_var_kl_is_the_hand_computed_one() -> None:
    # d = ref - policy = ln 2 and -ln 2: 2 - 1 - ln 2, 1/2 - 1 + ln 2
    kl = low_var_kl(np.array([-math.log(2), 0.0, -1.0]), np.array([0.0, -math.log(2), -1.0]))
    np.testing.assert_allclose(kl, [1 - math.log(2), math.log(2) - 0.5, 0.0], atol=1e-15)


def test_low_var_kl_is_clamped_as_slime_clamps_it() -> None:
    assert low_var_kl(np.array([-20.0]), np.array([0.0])).tolist() == [10.0]


SEGMENTS = ([1, 3, 2], ["a", "a", "b"])
"""Rollout a: segments of 1 and 3 tokens; rollout b: one of 2."""


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        # a: two turns of weight 1/2 each, in a mean over two rollouts
        ("turn-mean", [1 / 4, 1 / 12, 1 / 4]),
        ("rollout-token-mean", [1 / 8, 1 / 8, 1 / 4]),
        ("global-token-mean", [1 / 6, 1 / 6, 1 / 6]),
    ],
)
def test_the_weights_are_the_hand_computed_ones(
    objective: Objective, expected: list[float]
) -> None:
    np.testing.assert_allclose(token_weights(*SEGMENTS, objective), expected)


def test_mask_sums_are_slimes_for_the_rollout_and_times_the_turns_for_the_turn_mean() -> None:
    assert rollout_mask_sums(*SEGMENTS, "rollout-token-mean").tolist() == [4, 4, 2]
    assert rollout_mask_sums(*SEGMENTS, "turn-mean").tolist() == [2, 6, 2]


def reference(losses: Sequence[Sequence[Floats]], objective: Objective) -> float:
    """The loss as the objective's sentence says it; `losses[rollout][segment]` is float64[T]."""
    if objective == "global-token-mean":
        return float(np.concatenate([turn for rollout in losses for turn in rollout]).mean())
    if objective == "rollout-token-mean":
        return float(np.mean([np.concatenate(rollout).mean() for rollout in losses]))
    return float(np.mean([np.mean([turn.mean() for turn in rollout]) for rollout in losses]))


numbers = st.floats(-100, 100, allow_subnormal=False)
turns = st.lists(numbers, min_size=1, max_size=6).map(np.array)
steps = st.lists(st.lists(turns, min_size=1, max_size=4), min_size=1, max_size=5)


@pytest.mark.parametrize("objective", get_args(Objective))
@given(losses=steps, order=st.randoms(use_true_random=False))
def test_the_weighted_sum_is_the_mean_that_the_objective_names(
    objective: Objective, losses: list[list[Floats]], order: random.Random
) -> None:
    segments = [(name, turn) for name, rollout in enumerate(losses) for turn in rollout]
    order.shuffle(segments)
    weights = token_weights(
        [len(turn) for _, turn in segments], [name for name, _ in segments], objective
    )
    found = sum(weight * turn.sum() for weight, (_, turn) in zip(weights, segments, strict=True))
    assert found == pytest.approx(reference(losses, objective), rel=1e-9, abs=1e-9)


@given(losses=steps)
def test_a_rollout_of_one_segment_has_the_same_turn_and_rollout_mean(
    losses: list[list[Floats]],
) -> None:
    counts = [len(rollout[0]) for rollout in losses]
    names = range(len(counts))
    np.testing.assert_array_equal(
        token_weights(counts, names, "turn-mean"),
        token_weights(counts, names, "rollout-token-mean"),
    )


@pytest.mark.parametrize("objective", get_args(Objective))
@pytest.mark.parametrize("counts", [[0], [2, -1]])
def test_a_segment_without_trained_tokens_is_refused(
    counts: list[int], objective: Objective
) -> None:
    with pytest.raises(ValueError, match="trained tokens"):
        token_weights(counts, list(range(len(counts))), objective)


@pytest.mark.parametrize("objective", get_args(Objective))
def test_lengths_that_differ_are_refused(objective: Objective) -> None:
    with pytest.raises(ValueError, match="2 token counts for 1 segments"):
        token_weights([1, 2], ["a"], objective)


def test_importance_weights_are_held_or_left_out() -> None:
    old, rollout = np.log([0.5, 0.9, 0.1, 0.8]), np.log([0.25, 0.3, 0.4, 0.8])
    segment = np.array([0, 0, 1, 1])
    held, bounded = importance_weights(old, rollout, segment, low=0.5, high=2.5)
    assert held.tolist() == pytest.approx([2.0, 2.5, 0.5, 1.0])
    assert bounded.tolist() == [False, True, True, False]
    left, _ = importance_weights(old, rollout, segment, low=0.5, high=2.5, mode="mask")
    assert left.tolist() == pytest.approx([2.0, 0.0, 0.0, 1.0])
    # Of segments: the products 6 and 1/4, the geometric means their square roots.
    bounds = {"low": 0.0, "high": 100.0}
    product, _ = importance_weights(old, rollout, segment, level="sequence", **bounds)
    assert product.tolist() == pytest.approx([6.0, 6.0, 0.25, 0.25])
    mean, _ = importance_weights(old, rollout, segment, level="geometric", **bounds)
    assert mean.tolist() == pytest.approx([6**0.5, 6**0.5, 0.5, 0.5])

"""The objective against numbers worked out by hand."""

import math

import numpy as np
import pytest
from turnwise.objective import clipped_policy_loss, low_var_kl, token_weights


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


def test_rollout_mean_is_over_rollouts_whatever_their_segments() -> None:
    # rollout a: segments of 1 and 3 tokens; rollout b: one of 2
    weights = token_weights([1, 3, 2], ["a", "a", "b"], per_token=False)
    np.testing.assert_allclose(weights, [1 / 8, 1 / 8, 1 / 4])
    assert math.isclose(weights @ [1, 3, 2], 1.0)


def test_token_mean_weighs_every_token_alike() -> None:
    np.testing.assert_allclose(
        token_weights([1, 3, 2], ["a", "a", "b"], per_token=True), [1 / 6] * 3
    )


@pytest.mark.parametrize("counts", [[0], [2, -1]])
def test_a_segment_without_trained_tokens_is_refused(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="trained tokens"):
        token_weights(counts, list(range(len(counts))), per_token=True)


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="2 token counts for 1 segments"):
        token_weights([1, 2], ["a"], per_token=True)

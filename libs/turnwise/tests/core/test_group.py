"""Groups: baselines on scored members, over rollouts, and the reasons to drop one."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.episode import Boundary, BoundaryError, Ending, Episode
from turnwise.group import Drop, advantages, credit_advantages, drop_reason, make_groups

NAN = math.nan


def episode(rollout: str, group: str, score: float | None) -> Episode:
    ending = Ending.finished()
    if score is None:
        ending = Ending.lost(BoundaryError(Boundary.USER, "gone"))
    return Episode(rollout, group, "t", (), ending, score, [])


def test_advantages_are_the_hand_computed_ones() -> None:
    # mean 0.5; sample deviation sqrt((0.25 * 4) / 3) = 0.57735
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    result = advantages(np.array([1.0, 0.0, 1.0, 0.0]))
    np.testing.assert_allclose(result, [expected, -expected, expected, -expected], rtol=1e-12)


def test_without_std_normalisation_only_the_mean_is_taken_off() -> None:
    result = advantages(np.array([1.0, 0.0, 0.0, 0.0]), std_normalization=False)
    np.testing.assert_allclose(result, [0.75, -0.25, -0.25, -0.25])


def test_a_lost_member_moves_nobodys_baseline() -> None:
    whole = advantages(np.array([1.0, 0.0, 1.0]))
    with_lost = advantages(np.array([1.0, NAN, 0.0, 1.0]))
    np.testing.assert_array_equal(with_lost[[0, 2, 3]], whole)
    assert math.isnan(with_lost[1])


def test_a_group_of_one_has_advantage_zero() -> None:
    assert advantages(np.array([1.0, NAN])).tolist()[0] == 0.0


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ([1.0, 0.0, 1.0, NAN], None),
        ([1.0, 0.0, NAN, NAN], Drop.TOO_FEW_SCORED),
        ([NAN] * 4, Drop.TOO_FEW_SCORED),
        ([1.0, 1.0, 1.0, 1.0], Drop.ZERO_STD),
        ([1.0, 1.0, 1.0, NAN], Drop.ZERO_STD),
        ([0.3, 0.1 + 0.2, 0.3, 0.3], Drop.ZERO_STD),
        ([1.0, 0.0, 1.0, 0.0, NAN], None),
        ([1.0, 0.0, 1.0, NAN, NAN], Drop.TOO_FEW_SCORED),
    ],
)
def test_groups_are_dropped_by_the_stated_rules(scores: list[float], reason: Drop | None) -> None:
    assert drop_reason(np.array(scores)) is reason


def test_spread_is_only_required_under_dynamic_sampling() -> None:
    assert drop_reason(np.array([1.0, 1.0]), require_spread=False) is None


def test_groups_keep_first_appearance_order_and_interleaved_members() -> None:
    groups = make_groups(
        [episode("a0", "a", 1), episode("b0", "b", None), episode("a1", "a", 0)],
    )
    assert [group.group_id for group in groups] == ["a", "b"]
    assert [member.rollout_id for member in groups[0].episodes] == ["a0", "a1"]
    assert groups[0].drop is None
    assert groups[1].drop is Drop.TOO_FEW_SCORED


def test_a_rollout_may_not_count_twice() -> None:
    with pytest.raises(ValueError, match="'a0'"):
        make_groups([episode("a0", "a", 1), episode("a0", "b", 1)])


@given(st.lists(st.one_of(st.floats(-10, 10), st.just(NAN)), min_size=1, max_size=16))
def test_scored_advantages_sum_to_zero_and_keep_the_order(scores: list[float]) -> None:
    scores_G = np.array(scores)
    result = advantages(scores_G)
    mask = ~np.isnan(scores_G)
    assert np.array_equal(np.isnan(result), ~mask)
    if mask.any():
        assert abs(result[mask].sum()) < 1e-6 * mask.sum()
        order = np.argsort(scores_G[mask], kind="stable")
        assert (np.diff(result[mask][order]) >= 0).all()


def test_a_segments_credit_is_compared_with_those_at_its_place_alone() -> None:
    found = credit_advantages([(0.0, 1.0, 5.0), (), (1.0, 0.0), (0.5,)], std_normalization=False)
    assert [credit.tolist() for credit in found] == [[-0.5, 0.5, 0.0], [], [0.5, -0.5], [0.0]]
    scaled = credit_advantages([(0.0, 1.0), (1.0, 0.0)])
    np.testing.assert_allclose(scaled, [[-(0.5**0.5), 0.5**0.5], [0.5**0.5, -(0.5**0.5)]], 1e-5)


@given(st.lists(st.lists(st.floats(-5, 5), max_size=5), max_size=6))
def test_credit_at_a_place_sums_to_zero(credit_G: list[list[float]]) -> None:
    found = credit_advantages(credit_G, std_normalization=False)
    assert [len(credit) for credit in found] == [len(credit) for credit in credit_G]
    for place in range(5):
        assert abs(sum(credit[place] for credit in found if len(credit) > place)) < 1e-9


def test_a_segment_without_credit_is_compared_with_none() -> None:
    found = credit_advantages([[0.0, 2.0, None], [4.0, None]], std_normalization=False)
    assert [one.tolist() for one in found] == [[-2.0, 0.0, 0.0], [2.0, 0.0]]


def test_divided_by_the_deviation_a_credits_size_does_not_matter() -> None:
    small, large = (np.array(credit_advantages([[size], [0.0]])) for size in (0.1, 1.0))
    assert np.abs(small - large).max() < 1e-3 < np.abs(large).min()


def test_the_advantage_of_a_segment_is_its_episodes_and_its_own() -> None:
    segments: Any = (None, None)
    finished = Ending.finished()
    credits: list[Any] = [(0.0, 1.0), (0.0, 0.0), ()]
    scores = [1.0, 0.0, 0.5]
    members = [
        Episode(f"{n}", "g", "t", segments, finished, score, (), credit=credit)
        for n, (score, credit) in enumerate(zip(scores, credits, strict=True))
    ]
    [group] = make_groups(members, std_normalization=False)
    found = [group.segment_advantages(member).tolist() for member in range(3)]
    assert found == [[0.5, 1.0], [-0.5, -1.0], [0.0, 0.0]]
    [tied] = make_groups([replace(one, score=1.0) for one in members])
    assert tied.drop is None
    [alike] = make_groups([replace(one, score=1.0, credit=(0.3, 0.3)) for one in members])
    assert alike.drop is Drop.ZERO_STD


@pytest.mark.parametrize("credit", [(1.0,), (math.nan, 0.0), (True, 0.0)])
def test_credit_that_fits_no_segments_is_refused(credit: Any) -> None:
    segments: Any = (None, None)
    with pytest.raises(ValueError, match="credit for 1 segments|a score must be"):
        Episode("r", "g", "t", segments, Ending.finished(), 1.0, (), credit=credit)

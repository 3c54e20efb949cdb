from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.episode import Boundary, BoundaryError, Ending, Episode

from apps.trainers.toolorchestra.method import ToolOrchestraMethod
from apps.trainers.toolorchestra.options import RewardName, ToolOrchestraOptions
from apps.trainers.toolorchestra.reward import (
    Outcome,
    group_worths,
    original_worths,
    penalties,
    read_outcome,
    utility,
)
from apps.trainers.toolorchestra.tables import Budget
from apps.trainers.toolorchestra.tests.orchestra import TABLE

ROLES = [expert.role for expert in TABLE]
amounts = st.floats(0, 1e3) | st.sampled_from([0.0, 1.0, 1.001])
outcomes = st.builds(
    Outcome,
    correct=st.booleans(),
    cost=amounts,
    latency=amounts,
    calls=st.dictionaries(st.sampled_from(ROLES), st.integers(1, 9)),
)
groups = st.lists(outcomes, min_size=1, max_size=8)
weights = st.floats(0, 5)
preferences = st.fixed_dictionaries(
    {"accuracy": st.floats(0.1, 5), "cost": weights, "latency": weights},
    optional={role: st.floats(-3, 3) for role in ROLES},
)
budgets = st.none() | st.builds(
    Budget, cost=st.none() | st.floats(1e-3, 10), latency=st.none() | st.floats(1e-3, 10)
)
CLOSE = 1e-9


@given(groups, preferences, st.data())
def test_nobody_is_better_off_for_paying_more(
    group: Sequence[Outcome], weights: dict[str, float], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(group) - 1))
    feature = data.draw(st.sampled_from(["cost", "latency"]))
    more = group[place].found(feature) + data.draw(amounts)
    dearer = [*group]
    dearer[place] = replace(group[place], **{feature: more})
    before, after = (group_worths(one, weights, TABLE) for one in (group, dearer))
    assert after[place] <= before[place] + CLOSE
    for other in range(len(group)):
        assert other == place or after[other] >= before[other] - CLOSE or not group[other].correct


@given(groups, preferences, st.data())
def test_nothing_is_gained_by_one_more_call(
    group: Sequence[Outcome], weights: dict[str, float], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(group) - 1))
    role = data.draw(st.sampled_from(ROLES))
    one = group[place]
    calls = {**one.calls, role: one.calls.get(role, 0) + 1}
    busier = [*group]
    busier[place] = replace(one, calls=calls, cost=one.cost + data.draw(amounts))
    before, after = (group_worths(found, weights, TABLE) for found in (group, busier))
    assert after[place] <= before[place] + CLOSE


@given(groups, preferences)
def test_a_right_episode_is_worth_more_than_any_wrong_one(
    group: Sequence[Outcome], weights: dict[str, float]
) -> None:
    least = weights["accuracy"] / (weights["accuracy"] + sum(penalties(weights, TABLE).values()))
    for outcome, worth in zip(group, group_worths(group, weights, TABLE), strict=True):
        if outcome.correct:
            assert least - CLOSE <= worth <= 1 + CLOSE
        else:
            assert worth == 0


@given(outcomes, preferences, budgets, amounts)
def test_the_utility_never_rises_with_what_is_paid(
    outcome: Outcome, weights: dict[str, float], budget: Budget | None, more: float
) -> None:
    dearer = replace(outcome, cost=outcome.cost + more)
    before = utility(outcome, weights, TABLE, budget)
    assert 0 <= utility(dearer, weights, TABLE, budget) <= before <= 1 + CLOSE


@given(st.lists(outcomes, min_size=2, max_size=8), preferences)
def test_a_group_of_wrong_ones_has_no_spread(
    group: Sequence[Outcome], weights: dict[str, float]
) -> None:
    wrong = [replace(outcome, correct=False) for outcome in group]
    assert set(group_worths(wrong, weights, TABLE)) == {0.0}


@given(outcomes, preferences, st.integers(2, 8))
def test_right_ones_that_paid_alike_are_worth_alike(
    outcome: Outcome, weights: dict[str, float], count: int
) -> None:
    group = [replace(outcome, correct=True)] * count
    assert group_worths(group, weights, TABLE) == pytest.approx([1.0] * count)


def _right(cost: float, **calls: int) -> Outcome:
    named = {role.replace("_", "-"): count for role, count in calls.items()}
    return Outcome(correct=True, cost=cost, latency=0.0, calls=named)


def test_right_ones_that_differ_by_little_are_worth_nearly_alike() -> None:
    worths = group_worths([_right(1.0), _right(1.001)], {"accuracy": 1, "cost": 1}, TABLE)
    assert worths == pytest.approx([1.0, 1 - 0.5 * 0.001 / 0.1001])
    far = group_worths([_right(1.0), _right(2.0)], {"accuracy": 1, "cost": 1}, TABLE)
    assert far == pytest.approx([1.0, 0.5])


def test_a_wrong_one_does_not_move_what_right_ones_are_worth() -> None:
    group = [_right(1.0), _right(2.0)]
    wrong = Outcome(correct=False, cost=900.0, latency=9.0, calls={"answer-1": 40})
    weights = {"accuracy": 1.0, "cost": 1.0, "answer-2": 1.0}
    assert group_worths([*group, wrong], weights, TABLE)[:2] == group_worths(group, weights, TABLE)


def test_a_preferred_expert_is_preferred_among_those_of_its_tool() -> None:
    weights = {"accuracy": 1.0, "answer-1": 0.5}
    group = [_right(0, answer_1=1), _right(0, answer_2=1), _right(0, answer_1=5)]
    assert group_worths(group, weights, TABLE) == pytest.approx([1.0, 1 / 1.5, 1.0])
    assert penalties(weights, TABLE) == {"answer-2": 0.5}


def test_an_expert_that_is_not_wanted_is_avoided() -> None:
    assert penalties({"accuracy": 1.0, "answer-2": -0.5}, TABLE) == {"answer-2": 0.5}


def test_the_original_pays_for_calls_and_ours_does_not() -> None:
    weights = {"accuracy": 3.0, "cost": 0.1, "latency": 0.1, "answer-1": 3.0}
    frugal, spams = _right(1.0, answer_1=1), _right(2.0, answer_1=9)
    assert original_worths([frugal, spams], weights, TABLE) == pytest.approx([0.1, 3.0])
    ours = group_worths([frugal, spams], weights, TABLE)
    assert ours[0] > ours[1]


def test_the_original_scales_over_wrong_ones_too() -> None:
    weights = {"accuracy": 1.0, "cost": 1.0}
    wrong = Outcome(correct=False, cost=3.0, latency=0.0, calls={})
    worths = original_worths([_right(1.0), _right(2.0), wrong], weights, TABLE)
    assert worths == pytest.approx([2.0, 1.5, 0.0])


def _episode(number: int, outcome: Outcome | None, weights: dict[str, float]) -> Episode:
    lost = Ending.lost(BoundaryError(Boundary.ENGINE, "gone"))
    facts = {"preferences": weights, "experts": [expert.model_dump() for expert in TABLE]}
    return Episode(
        rollout_id=f"r{number}",
        group_id="g",
        task_id="t",
        segments=(),
        ending=lost if outcome is None else Ending.finished(),
        score=None if outcome is None else 0.25,
        transcript=(),
        info={} if outcome is None else {"orchestra": {**outcome.row(), **facts}},
    )


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("preference", [1.0, None, 0.5, 0.0]),
        ("utility", [0.25, None, 0.25, 0.25]),
        ("original", [2.0, None, 1.0, 0.0]),
        ("correctness", [1.0, None, 1.0, 0.0]),
    ],
)
def test_a_group_is_scored_over_its_scored_members(
    reward: RewardName, expected: list[float | None]
) -> None:
    method = ToolOrchestraMethod(ToolOrchestraOptions(reward=reward))
    wrong = Outcome(correct=False, cost=2.0, latency=0.0, calls={})
    members = [_right(1.0), None, _right(2.0), wrong]
    weights = {"accuracy": 1.0, "cost": 1.0}
    group = [_episode(number, one, weights) for number, one in enumerate(members)]
    assert list(method.group_scores(group)) == pytest.approx(expected)


def test_a_group_without_a_score_keeps_none() -> None:
    method = ToolOrchestraMethod(ToolOrchestraOptions())
    assert method.group_scores([_episode(0, None, {})]) == [None]


@given(outcomes)
def test_an_outcome_survives_the_trace(outcome: Outcome) -> None:
    assert read_outcome(outcome.row()) == outcome

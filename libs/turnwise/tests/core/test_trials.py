"""Statistics of an evaluation on hand-computed numbers, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.run.summary import percent
from turnwise.trials import (
    Trial,
    TrialError,
    by_task,
    mean_score,
    paired_difference,
    pass_hat_k,
)


def test_the_standard_error_is_clustered_by_task() -> None:
    # task means 1, 0.5, 0: deviation 0.5, over sqrt(3)
    estimate = mean_score({"a": [1, 1], "b": [1, 0], "c": [0, 0]})
    assert (estimate.mean, estimate.tasks, estimate.trials) == (0.5, 3, 6)
    assert math.isclose(estimate.stderr, 0.5 / math.sqrt(3))


def test_more_trials_of_the_same_tasks_do_not_shrink_the_error_of_their_spread() -> None:
    few = mean_score({"a": [1.0], "b": [0.0]})
    many = mean_score({"a": [1.0] * 100, "b": [0.0] * 100})
    assert few.stderr == many.stderr == 0.5


def test_a_lost_trial_lowers_the_coverage_and_not_the_mean() -> None:
    estimate = mean_score({"a": [1, None], "b": [None, None]})
    assert (estimate.mean, estimate.tasks, estimate.trials) == (1.0, 1, 1)


def test_the_difference_is_paired_by_task() -> None:
    before = {"a": [0, 0], "b": [1, 0], "c": [0, 0]}
    after = {"a": [1, 0], "b": [1, 1], "c": [1, 0]}
    estimate = paired_difference(before, after)
    assert (estimate.mean, estimate.stderr) == (0.5, 0.0)


def test_a_difference_over_other_tasks_is_refused() -> None:
    with pytest.raises(TrialError, match="first b"):
        paired_difference({"a": [1]}, {"a": [1], "b": [0]})


@pytest.mark.parametrize(("k", "expected"), [(1, 0.5), (2, 7 / 18), (3, 1 / 3)])
def test_pass_hat_k_is_the_hand_computed_one(k: int, expected: float) -> None:
    # 4, 2 and 0 passes of 4: comb(2, 2) / comb(4, 2) = 1/6
    table = {"a": [1, 1, 1, 1], "b": [1, 1, 0, 0], "c": [0, 0, 0, 0]}
    assert math.isclose(pass_hat_k(table, k).mean, expected)


def test_pass_hat_k_leaves_out_tasks_that_cannot_tell() -> None:
    estimate = pass_hat_k({"a": [1, 1, None], "b": [1, 1, 1]}, 3)
    assert (estimate.mean, estimate.tasks) == (1.0, 1)


@given(st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=1, max_size=10))
def test_pass_hat_k_never_rises_with_k(rows: list[list[int]]) -> None:
    table = {str(index): row for index, row in enumerate(rows)}
    values = [pass_hat_k(table, k).mean for k in (1, 2, 3)]
    assert values == sorted(values, reverse=True)


def test_a_complete_table_is_put_in_order() -> None:
    trials = [Trial("a", 1, 0.0), Trial("b", 0, None), Trial("a", 0, 1.0), Trial("b", 1, 1.0)]
    assert by_task(trials, ["b", "a"], 2) == {"b": [None, 1.0], "a": [1.0, 0.0]}


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        ([Trial("a", 0, 1.0)], "1 of 2 trials are missing, first trial 1 of task a"),
        ([Trial("a", 0, 1.0), Trial("a", 0, 1.0)], "trial 0 of task a stands twice"),
        ([Trial("x", 0, 1.0)], "unexpected trial 0 of task x"),
        ([Trial("a", 2, 1.0)], "unexpected trial 2 of task a"),
    ],
)
def test_missing_and_duplicate_trials_are_refused(trials: list[Trial], message: str) -> None:
    with pytest.raises(TrialError, match=message):
        by_task(trials, ["a"], 2)


def test_what_floating_point_parts_is_equal() -> None:
    before, after = {"a": [1, 0, 0], "b": [1, 1, 0]}, {"a": [1, 1, 0], "b": [1, 1, 1]}
    assert 2 / 3 - 1 / 3 != 1 - 2 / 3
    found = paired_difference(before, after)
    assert found.mean == pytest.approx(1 / 3) and found.stderr == 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"a": [0.0, 0.0], "b": [0.0, 0.0]}, "0.0 % (95 % below 65.8 %)"),
        ({str(n): [1.0] for n in range(12)}, "100.0 % (95 % above 75.8 %)"),
        ({"a": [1.0], "b": [0.0]}, "50.0 ± 50.0 %"),
        ({"a": [0.5], "b": [0.5]}, "50.0 ± 0.0 %"),
        ({"a": [0.0]}, "0.0 %"),
    ],
)
def test_tasks_that_all_agree_on_0_or_1_leave_what_few_of_them_can_not_rule_out(
    table: dict[str, list[float | None]], said: str
) -> None:
    assert percent(mean_score(table)) == said

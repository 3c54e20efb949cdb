"""Statistics of k attempts on hand-computed numbers, and what must hold for any numbers."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.evaluation.estimates import (
    Attempt,
    as_attempts,
    avg_at_k,
    maj_at_k,
    paired_bootstrap,
    pass_at_k,
)
from turnwise.trials import TrialError, mean_score, paired_difference

scores = st.sampled_from([0.0, 1.0, None])
tables = st.integers(1, 4).flatmap(
    lambda k: st.lists(st.lists(scores, min_size=k, max_size=k), min_size=1, max_size=6)
)


def table(*rows: Sequence[float | None]) -> dict[str, list[Attempt]]:
    return as_attempts({str(number): row for number, row in enumerate(rows)})


def voted(*votes: tuple[str | None, float | None]) -> dict[str, list[Attempt]]:
    return {"t": [Attempt(score, vote) for vote, score in votes]}


def test_avg_at_k_has_the_error_over_tasks_and_bounds_over_all_attempts() -> None:
    found = avg_at_k(table([1, 1], [1, 0], [0, None]))
    # task means 1, 0.5, 0: deviation 0.5, over sqrt(3); the lost one would make 0 of 0 or 0.5
    assert (found.estimate.mean, found.estimate.tasks, found.estimate.trials) == (0.5, 3, 5)
    assert math.isclose(found.estimate.stderr, 0.5 / math.sqrt(3))
    assert found.low == 0.5
    assert found.high == pytest.approx(2 / 3)


@given(tables)
def test_avg_at_k_is_the_mean_score_of_every_evaluation(rows: list[list[float | None]]) -> None:
    plain = {str(number): row for number, row in enumerate(rows)}
    found, expected = avg_at_k(as_attempts(plain)).estimate, mean_score(plain)
    np.testing.assert_allclose(
        [found.mean, found.stderr], [expected.mean, expected.stderr], equal_nan=True
    )
    assert (found.tasks, found.trials) == (expected.tasks, expected.trials)


@given(st.integers(0, 7), st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_k_subsets_with_a_pass(
    passes: int, n: int, data: st.DataObject
) -> None:
    passes = min(passes, n)
    k = data.draw(st.integers(1, n))
    outcomes = [1.0] * passes + [0.0] * (n - passes)
    subsets = list(itertools.combinations(outcomes, k))
    expected = Fraction(sum(any(subset) for subset in subsets), len(subsets))
    assert pass_at_k(table(outcomes), k).estimate.mean == pytest.approx(float(expected))


def test_a_task_with_too_few_scored_attempts_is_in_the_bounds_alone() -> None:
    found = pass_at_k(table([1, 0], [0, None]), 2)
    assert (found.estimate.mean, found.estimate.tasks) == (1.0, 1)
    assert (found.low, found.high) == (0.5, 1.0)


@pytest.mark.parametrize("k", [0, 3])
def test_pass_at_k_of_attempts_that_nobody_made_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} needs"):
        pass_at_k(table([1, 0]), k)


@given(tables)
def test_the_bounds_hold_the_estimate_and_meet_it_where_nothing_was_lost(
    rows: list[list[float | None]],
) -> None:
    made = {
        name: [Attempt(a.score, f"answer {a.score}") for a in row]
        for name, row in table(*rows).items()
    }
    for found in (avg_at_k(made), pass_at_k(made, 1), maj_at_k(made)):
        if not math.isnan(found.estimate.mean):
            assert found.low - 1e-12 <= found.estimate.mean <= found.high + 1e-12
        if all(score is not None for row in rows for score in row):
            assert found.low == found.estimate.mean == found.high


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([("7", 1.0), ("7", 1.0), ("8", 0.0)], 1.0),
        ([("7", 1.0), ("8", 0.0), ("8", 0.0)], 0.0),
        ([("7", 1.0), ("8", 0.0)], 0.5),
        ([("7", 1.0), (None, 0.0), (None, 0.0)], 1.0),
        ([(None, 0.0), (None, 0.0)], 0.0),
        ([("7", 1.0), ("8", None), ("8", None)], 1.0),
    ],
)
def test_the_majority_has_the_score_of_its_answer(
    votes: list[tuple[str | None, float | None]], expected: float
) -> None:
    assert maj_at_k(voted(*votes)).estimate.mean == expected


def test_lost_votes_could_turn_a_majority_either_way() -> None:
    found = maj_at_k(voted(("7", 1.0), ("7", 1.0), ("8", 0.0), (None, None), (None, None)))
    assert (found.estimate.mean, found.low, found.high) == (1.0, 0.0, 1.0)
    found = maj_at_k(voted(("7", 1.0), ("8", 0.0), ("8", 0.0), (None, None)))
    assert (found.estimate.mean, found.low, found.high) == (0.0, 0.0, 0.5)


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9), st.randoms())
def test_the_majority_does_not_depend_on_the_order(votes: list[str], order: random.Random) -> None:
    made = [(vote, float(vote == "a")) for vote in votes]
    first = maj_at_k(voted(*made))
    order.shuffle(made)
    assert maj_at_k(voted(*made)) == first


@given(tables, tables)
def test_the_bootstrap_has_the_paired_mean_and_is_the_same_for_the_same_seed(
    before: list[list[float | None]], after: list[list[float | None]]
) -> None:
    tasks = min(len(before), len(after))
    old = {str(n): before[n] for n in range(tasks)}
    new = {str(n): after[n] for n in range(tasks)}
    found = paired_bootstrap(as_attempts(old), as_attempts(new), seed=3, draws=200)
    expected = paired_difference(old, new)
    np.testing.assert_allclose(found.mean, expected.mean, equal_nan=True)
    assert found.tasks == expected.tasks
    again = paired_bootstrap(as_attempts(old), as_attempts(new), seed=3, draws=200)
    assert str(again) == str(found)
    if not math.isnan(found.stderr):
        assert found.low <= found.high
        if found.tasks == tasks:
            assert found.worst - 1e-12 <= found.mean <= found.best + 1e-12
        assert 1 / 201 <= found.p_value <= 1


def test_the_bootstrap_error_is_the_clustered_one_for_many_tasks() -> None:
    rng = np.random.default_rng(0)
    old = {str(n): [float(x) for x in rng.integers(0, 2, 4)] for n in range(200)}
    new = {name: [float(x) for x in rng.integers(0, 2, 4)] for name in old}
    found = paired_bootstrap(as_attempts(old), as_attempts(new))
    assert found.stderr == pytest.approx(paired_difference(old, new).stderr, rel=0.05)
    assert found.low == pytest.approx(found.mean - 1.96 * found.stderr, abs=0.005)
    swapped = paired_bootstrap(as_attempts(new), as_attempts(old))
    assert swapped.mean == -found.mean


def test_a_sure_difference_is_shown_and_none_is_not() -> None:
    old, new = table(*[[0.0, 0.0]] * 20), table(*[[1.0, 0.0]] * 20)
    found = paired_bootstrap(old, new)
    assert found.shown and found.p_value == pytest.approx(1 / 10_001)
    assert str(found) == (
        "+50.0 points, paired over 20 tasks, 95 % interval +50.0 to +50.0, p = 0.0001:"
        " a difference is shown"
    )
    assert not paired_bootstrap(old, old).shown and paired_bootstrap(old, old).p_value == 1.0


@pytest.mark.parametrize(("tasks", "shown"), [(2, False), (4, False), (5, False), (8, True)])
def test_few_tasks_show_nothing_however_alike_they_rise(tasks: int, shown: bool) -> None:
    found = paired_bootstrap(table(*[[0.0]] * tasks), table(*[[1.0]] * tasks))
    assert found.p_value == 2.0 ** (1 - tasks)
    assert found.shown is shown and found.low == 1.0


def test_a_difference_of_chance_is_shown_as_seldom_as_it_says() -> None:
    rng = np.random.default_rng(0)
    shown = 0
    for seed in range(200):
        old, new = (table(*rng.normal(size=(4, 1)).tolist()) for _ in "12")
        shown += paired_bootstrap(old, new, seed=seed, draws=500).shown
    assert shown <= 20


def test_lost_attempts_widen_what_the_difference_could_be() -> None:
    found = paired_bootstrap(table([1.0, None], [0.0, 0.0]), table([1.0, 1.0], [0.0, None]))
    assert (found.mean, found.worst, found.best) == (0.0, 0.0, 0.5)


def test_runs_of_other_tasks_are_not_compared() -> None:
    with pytest.raises(TrialError, match="1 tasks are in one of the two runs alone, first 1"):
        paired_bootstrap(table([1]), table([1], [0]))


def test_one_task_has_no_error() -> None:
    found = paired_bootstrap(table([0.0]), table([1.0]))
    assert found.mean == 1.0 and math.isnan(found.stderr)
    assert "no error can be given" in str(found)

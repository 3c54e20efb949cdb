"""Measures by name."""

import pytest
from turnwise.evaluation.estimates import as_attempts
from turnwise.evaluation.measures import measure


def test_each_name_gives_its_measures_with_bounds() -> None:
    table = as_attempts({"a": [1.0, 1.0, None], "b": [1.0, 0.0, 0.0]})
    found = {one.name: one for one in measure(("avg@k", "pass^k", "pass@k", "maj@k"), table, 3)}
    assert list(found) == [
        "avg@3", "pass^1", "pass^2", "pass^3", "pass@2", "pass@3", "maj@3",
    ]  # fmt: skip
    # Task a passes twice of two, task b once of three; the lost trial may have failed or passed.
    assert found["pass^2"].estimate.mean == pytest.approx((1 + 0) / 2)
    assert (found["pass^2"].low, found["pass^2"].high) == (pytest.approx(1 / 6), 0.5)
    assert (found["pass^3"].estimate.tasks, found["pass^3"].low, found["pass^3"].high) == (
        1,
        0,
        0.5,
    )
    assert found["avg@3"].low == pytest.approx((2 / 3 + 1 / 3) / 2)


def test_one_trial_says_nothing_about_several() -> None:
    table = as_attempts({"a": [1.0]})
    assert [one.name for one in measure(("avg@k", "pass@k"), table, 1)] == ["avg@1"]

"""What a run on a cluster showed is told as that of a run on this machine is."""

from __future__ import annotations

import pytest
from turnwise.launch.result import summarise

from .rows import eval_row


def test_the_numbers_that_a_method_has_compared_stand_beside_the_verdict_of_a_cluster_run() -> None:
    scores = {"a": [0.0], "b": [1.0], "c": [0.0]}
    first = eval_row(scores=scores, compared={"cost_usd": {"a": [4.0], "b": [2.0], "c": [None]}})
    last = eval_row(
        step=8, scores=scores, compared={"cost_usd": {"a": [1.0], "b": [1.0], "c": [9.0]}}
    )
    change = summarise([first, last], "m", 0).compared["cost_usd"]
    assert (change.before.mean, change.difference.mean) == pytest.approx((3.0, -2.0))
    # Without an evaluation of the untouched policy there is nothing to compare with.
    assert summarise([last, last], "m", 0).compared == {}


def test_a_verdict_over_a_part_of_the_tasks_says_so() -> None:
    whole = {"started": 3, "finished": 3, "stopped": {}, "lost": {}, "cancelled": 0}
    part = {**whole, "finished": 1, "lost": {"user": 1}, "cancelled": 1}
    first = eval_row(scores={"a": [0.0], "b": [1.0], "c": [0.0]}, ledger=whole)
    last = eval_row(step=8, scores={"a": [0.0], "b": [None], "c": [None]}, ledger=part)
    said = summarise([first, last], "m", 0).verdict()
    assert said.endswith(
        "no error can be given; coverage 0.667, trials were lost: 1 to cancellation, 1 to user,"
        " so that it is over 1 of 3 tasks; it is weak, since lost trials may differ from those"
        " that were scored."
    )
    assert "coverage" not in summarise([first, first], "m", 0).verdict()

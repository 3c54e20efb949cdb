"""The figures of a run are taken from its rows, also of one that was cut off."""

from __future__ import annotations

from typing import Any

from benchmarks.one_gpu.measure import figures


def step(number: int, rollout_s: float, tokens: int) -> dict[str, Any]:
    return {
        "kind": "train",
        "step": number,
        "rollout_s": rollout_s,
        "train_s": 1.0,
        "sampled_tokens": tokens,
        "tokens_per_s": tokens / rollout_s,
        "max_logprob_diff": 0.1,
    }


def test_the_first_step_warms_up_and_the_median_of_the_others_counts() -> None:
    said = figures([step(1, 60.0, 100), step(2, 2.0, 100), step(3, 4.0, 100), step(4, 1.0, 100)])
    assert said["median"] == {"rollout_s": 2.0, "train_s": 1.0, "tokens_per_s": 50.0}
    assert [one["step"] for one in said["steps"]] == [1, 2, 3, 4]
    assert said["steps"][0]["mean_logprob_diff"] is None


def test_a_run_that_was_cut_off_has_what_it_had() -> None:
    evaluation = {
        "kind": "eval", "step": 0, "reward_mean": 0.3, "reward_stderr": 0.04, "coverage": 1.0,
        "eval_s": 2.0,
    }  # fmt: skip
    said = figures([evaluation, step(1, 2.0, 100)])
    assert "median" not in said
    assert said["evaluations"] == [
        {"step": 0, "reward_mean": 0.3, "reward_stderr": 0.04, "coverage": 1.0, "seconds": 2.0}
    ]
    assert figures([]) == {"evaluations": [], "steps": []}

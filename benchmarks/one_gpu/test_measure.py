"""The figures of a run are taken from its rows, also of one that was cut off; parts are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.one_gpu.fixed import messages
from benchmarks.one_gpu.measure import figures, main
from benchmarks.one_gpu.watching import read, tail


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


def test_a_part_of_no_policy_or_engine_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path), "shipped/vllm"])
    said = capsys.readouterr().err
    assert "shipped/vllm: is no POLICY/ENGINE" in said and "sglang-lora" in said


def test_prompts_begin_alike_and_end_in_their_own_way() -> None:
    one, other, again = (messages(f"train/{place}", 40) for place in (0, 1, 0))
    assert one == again and one[0] == other[0] and one[1] != other[1]
    assert sum(len(message["content"].split()) for message in one) == 40


def test_what_is_being_written_or_is_not_there_is_nothing_yet(tmp_path: Path) -> None:
    half = tmp_path / "half.json"
    half.write_text('[{"step_s": ')
    assert read(half) is None and read(tmp_path / "none.json") is None
    assert tail(tmp_path / "none.log") == []

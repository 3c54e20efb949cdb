"""What is sampled, scored and learnt with a seed stays what it was: the first two steps of each
method's own run, as they were before methods had one contract. A change of these numbers is a
change of the product, and is said in the changelog."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from turnwise.local.command import train_method

# reward_mean, loss, sampled and trained tokens, groups kept
STEPS = {
    "tau": [
        (0.296875, -0.0502340, 4681, 4074, 7),
        (0.296875, -0.0599648, 4565, 3944, 7),
    ],
    "agentflow": [
        (0.421875, 0.00075962, 3928, 3928, 16),
        (0.609375, -0.00147144, 3854, 2955, 12),
    ],
}
BEFORE = {
    "tau": (0.31382978723404253, {"finished": 187, "stopped:format": 1}),
    "agentflow": (0.5119047619047619, {"finished": 137, "stopped:format": 31}),
}


@pytest.mark.parametrize("method", STEPS)
def test_seed_3_gives_the_numbers_that_it_always_gave(method: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    argv = ["--seed", "3", "--threads", "1", "--num-rollout", "2", "--run-dir", str(folder)]
    assert train_method(method, argv) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    before, *steps, _ = rows
    assert (before["reward_mean"], before["endings"]) == BEFORE[method]
    names = ("reward_mean", "loss", "sampled_tokens", "trained_tokens", "groups_kept")
    found = [tuple(step[name] for name in names) for step in steps]
    assert found == [pytest.approx(expected, rel=1e-3) for expected in STEPS[method]]
    for step, expected in zip(found, STEPS[method], strict=True):
        assert step[2:] == expected[2:]

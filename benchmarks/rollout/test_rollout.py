"""The measured pattern, small and fast: everything is accounted for and nothing blocks."""

import pytest

from benchmarks.rollout.measure import MeasureConfig, measure


@pytest.mark.parametrize("blocking", [False, True])
def test_every_episode_of_the_benchmark_is_scored(blocking: bool) -> None:
    config = MeasureConfig(episodes=8, policy_s=0.01, user_s=0.01, blocking=blocking)
    measured = measure(config)
    assert measured.coverage == 1.0
    assert measured.wall_s >= measured.latency_s
    assert measured.prompt_tokens > 3000

"""Statistics over samples; like slime's, they need a reward in every sample."""

from __future__ import annotations

from statistics import fmean
from typing import Any


def compute_metrics_from_samples(args: Any, samples: list[Any]) -> dict[str, float]:
    rewards = [round(float(sample.get_reward_value(args)), 1) for sample in samples]
    lengths = [sample.effective_response_length for sample in samples]
    cached = sum(sample.prefix_cache_info.cached_tokens for sample in samples)
    prompts = sum(sample.prefix_cache_info.total_prompt_tokens for sample in samples)
    truncated = [sample.status == type(sample).Status.TRUNCATED for sample in samples]
    return {
        "response_len/mean": fmean(lengths),
        "response_len/max": max(lengths),
        "zero_std/count": float(len(set(rewards)) == 1),
        "prefix_cache_hit_rate": cached / prompts if prompts else 0.0,
        "truncated_ratio": fmean(truncated),
    }


def compute_perf_metrics_from_samples(
    args: Any, samples: list[Any], rollout_time: float
) -> dict[str, float]:
    longest = max(sample.response_length for sample in samples)
    return {
        "rollout_time": rollout_time,
        "longest_sample_tokens_per_sec": longest / rollout_time,
        "non_generation_time/mean": fmean(sample.non_generation_time for sample in samples),
    }

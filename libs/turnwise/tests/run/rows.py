"""Rows of metrics.jsonl with every field, to change one at a time."""

from __future__ import annotations

from turnwise.run.metrics import EvalRow, MetricMean, TrainRow

LEDGER = {"started": 4, "finished": 3, "stopped": {}, "lost": {"user": 1}, "cancelled": 0}


def train_row(**changes: object) -> TrainRow:
    fields: dict[str, object] = {
        "step": 3,
        "reward_mean": 0.5,
        "reward_stderr": 0.1,
        "coverage": 0.75,
        "ledger": LEDGER,
        "endings": {"finished": 3, "lost:user": 1},
        "metrics": {
            "turns": MetricMean(3.0, 4),
            "tool_calls": MetricMean(2.0, 4),
            "parse_errors/bad_json": MetricMean(1.0, 1),
        },
        "services": {"user": "offline"},
        "service_totals": {"user/usd": 0.25},
        "loss": 0.1,
        "kl": 0.0,
        "entropy": 1.2,
        "clip_fraction": 0.01,
        "grad_norm": 0.8,
        "max_logprob_diff": 1e-6,
        "trained_tokens": 100,
        "sampled_tokens": 120,
        "tokens_per_s": 60.0,
        "groups": 2,
        "groups_kept": 1,
        "groups_dropped": {"zero_std": 1},
        "rollout_s": 2.0,
        "train_s": 1.0,
        "loop_lag_p50_ms": 0.1,
        "loop_lag_max_ms": 9.0,
    }
    return TrainRow(**{**fields, **changes})  # type: ignore[arg-type]


def eval_row(**changes: object) -> EvalRow:
    fields: dict[str, object] = {
        "step": 0,
        "reward_mean": 0.5,
        "reward_stderr": 0.1,
        "coverage": 0.75,
        "ledger": LEDGER,
        "endings": {"finished": 3, "lost:user": 1},
        "metrics": {"turns": MetricMean(3.5, 4)},
        "baselines": {"doing nothing": 0.0},
        "services": {"user": "offline"},
        "service_totals": {"user/usd": 0.25},
        "eval_s": 4.0,
        "scores": {"retail/train/1": [1.0, None], "retail/train/2": [0.0, 1.0]},
    }
    return EvalRow(**{**fields, **changes})  # type: ignore[arg-type]

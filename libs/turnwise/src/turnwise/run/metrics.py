"""Rows of `metrics.jsonl`. The names are frozen by a test: others read them.

Means and errors are over scored rollouts; `coverage` says of how many. Times are in seconds unless
the name ends with `_ms`. None stands where a number does not exist (no group was kept).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from turnwise.ledger import LedgerRow


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRow:
    """An evaluation of the weights after `step` training steps.

    `scores` holds each task's scores by trial, None where one was lost; the error of `reward_mean`
    is clustered by task. `endings` counts episodes by `Ending.label`.
    """

    step: int
    kind: str = "eval"
    reward_mean: float
    reward_stderr: float
    coverage: float
    ledger: LedgerRow
    endings: dict[str, int]
    noop_baseline: float
    user: str
    eval_s: float
    scores: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """A training step.

    `loss` to `grad_norm` are means over the step's optimiser steps. `max_logprob_diff` is the
    largest difference between the engine's and the trainer's log-prob of a sampled token, before
    the first update. `tokens_per_s` is sampled tokens over `rollout_s`.
    """

    step: int
    kind: str = "train"
    reward_mean: float
    reward_stderr: float
    coverage: float
    ledger: LedgerRow
    endings: dict[str, int]
    user: str
    loss: float | None
    kl: float | None
    entropy: float | None
    clip_fraction: float | None
    grad_norm: float | None
    max_logprob_diff: float | None
    trained_tokens: int
    sampled_tokens: int
    tokens_per_s: float
    groups: int
    groups_kept: int
    groups_dropped: dict[str, int]
    turns_mean: float
    tool_calls_mean: float
    parse_errors: dict[str, int]
    rollout_s: float
    train_s: float
    loop_lag_p50_ms: float
    loop_lag_max_ms: float


def as_row(metrics: EvalRow | TrainRow) -> dict[str, Any]:
    """The row as it stands in the file."""
    return asdict(metrics)

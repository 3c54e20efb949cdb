"""Rows of `metrics.jsonl`. The names are frozen by a test: others read them.

Means and errors are over scored rollouts; `coverage` says of how many. Times are in seconds unless
the name ends with `_ms`. None stands where a number does not exist: no group was kept, no rollout
was scored, or the backend does not measure it. NaN becomes None on its way to the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from turnwise.ledger import LedgerRow
from turnwise.run.jsonl import Row, plain


class MetricMean(msgspec.Struct, frozen=True):
    """A number of `Episode.metrics`: its mean over the episodes that have it, and how many do."""

    mean: float
    episodes: int


class EvalRow(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation of the weights after `step` training steps.

    `scores` holds each task's scores by trial, None where one was lost; the error of `reward_mean`
    is clustered by task. `endings` counts episodes by `Ending.label`. `baselines` is what fixed
    behaviours score on the same tasks, `services` who played with the policy, by role, and
    `service_totals` what they have used since the process started.
    """

    step: int
    kind: Literal["eval"] = "eval"
    reward_mean: float | None
    reward_stderr: float | None
    coverage: float | None
    ledger: LedgerRow
    endings: dict[str, int]
    metrics: dict[str, MetricMean]
    baselines: dict[str, float]
    services: dict[str, str]
    service_totals: dict[str, float] = {}
    eval_s: float
    scores: dict[str, list[float | None]]


class TrainRow(msgspec.Struct, frozen=True, kw_only=True):
    """A training step.

    `loss` to `grad_norm` are means over the step's optimiser steps, weighted by trained tokens.
    `max_logprob_diff` is the largest difference between the engine's and the trainer's log-prob of
    a token that is trained on, before the first update. `tokens_per_s` is sampled tokens over
    `rollout_s`.
    """

    step: int
    kind: Literal["train"] = "train"
    reward_mean: float | None
    reward_stderr: float | None
    coverage: float | None
    ledger: LedgerRow
    endings: dict[str, int]
    metrics: dict[str, MetricMean]
    services: dict[str, str]
    service_totals: dict[str, float] = {}
    loss: float | None
    kl: float | None
    entropy: float | None
    clip_fraction: float | None
    grad_norm: float | None
    max_logprob_diff: float | None
    trained_tokens: int
    sampled_tokens: int
    tokens_per_s: float | None
    groups: int
    groups_kept: int
    groups_dropped: dict[str, int]
    rollout_s: float
    train_s: float
    loop_lag_p50_ms: float | None
    loop_lag_max_ms: float | None


MetricsRow = EvalRow | TrainRow


def metric_means(metrics: Iterable[Mapping[str, float | None]]) -> dict[str, MetricMean]:
    """Means over the episodes that have a number, by name in order of first appearance.

    Args:
        metrics: `Episode.metrics` of each episode; None and NaN are no numbers.
    """
    found: dict[str, list[float]] = {}
    for episode in metrics:
        for name, value in episode.items():
            if value is not None and not math.isnan(value):
                found.setdefault(name, []).append(value)
    return {
        name: MetricMean(sum(values) / len(values), len(values)) for name, values in found.items()
    }


def as_row(metrics: MetricsRow) -> Row:
    """The row as it stands in the file."""
    row: Row = plain(msgspec.to_builtins(metrics))
    return row


def parse_row(row: Row) -> MetricsRow:
    """The typed row; names that are not known here are left out.

    Raises:
        ValueError: saying which field is missing or of the wrong type.
    """
    kind: Any = row.get("kind")
    try:
        if kind == "eval":
            return msgspec.convert(row, EvalRow)
        if kind == "train":
            return msgspec.convert(row, TrainRow)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    raise ValueError(f"kind: expected 'eval' or 'train', found {kind!r}")

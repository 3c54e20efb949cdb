"""Rows of `metrics.jsonl`. The names are frozen by a test: others read them.

Means and errors are over scored rollouts; `coverage` says of how many. Times are in seconds unless
the name ends with `_ms`. None stands where a number does not exist: no group was kept, no rollout
was scored, or the backend does not measure it. NaN becomes None on its way to the file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from turnwise.config import ConfigError
from turnwise.episode import Ending
from turnwise.ledger import LedgerRow
from turnwise.run.jsonl import Row, plain, read_rows


class MetricMean(msgspec.Struct, frozen=True):
    """A number of `Episode.metrics`: its mean over the episodes that have it, and how many do."""

    mean: float
    episodes: int


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Two numbers of `Episode.metrics` that the report sets against each other.

    Each evaluation is a point, its means. `points` are those of fixed behaviours on the same tasks,
    `[x, y]` by name.
    """

    title: str
    x: str
    y: str
    points: dict[str, tuple[float, float]] = {}


class EvalRow(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation of the weights after `step` training steps.

    `dataset` names what was evaluated on where a run has several. `scores` holds each task's scores
    by trial, None where one was lost; the error of `reward_mean` is clustered by task. `compared`
    holds the numbers that the method has compared, by name, in the same way. `pictures` are drawn
    by the report. `endings` counts
    episodes by `Ending.label`. `baselines` is what fixed behaviours score on the same tasks,
    `services` who played with the policy, by role, and `service_totals` what they have used since
    the process started.
    """

    step: int
    kind: Literal["eval"] = "eval"
    dataset: str = ""
    reward_mean: float | None
    reward_stderr: float | None
    coverage: float | None
    ledger: LedgerRow
    endings: dict[str, int]
    metrics: dict[str, MetricMean] = {}
    baselines: dict[str, float] = {}
    services: dict[str, str] = {}
    service_totals: dict[str, float] = {}
    eval_s: float
    scores: dict[str, list[float | None]]
    compared: dict[str, dict[str, list[float | None]]] = {}
    pictures: list[Picture] = []


class TrainRow(msgspec.Struct, frozen=True, kw_only=True):
    """A training step.

    `loss` to `grad_norm` are means over the step's optimiser steps, weighted by trained tokens.
    `max_logprob_diff` is the largest difference between the engine's and the trainer's log-prob of
    a token that is trained on, before the first update, and `mean_logprob_diff` their mean.
    `tis_mean` is the mean importance ratio of trainer and engine before any bound,
    `tis_clip_fraction` the share of tokens outside the bounds; None without that correction.
    `peak_memory_bytes` is the most that torch has held on the GPU since the process began,
    `predicted_memory_bytes` what `turnwise.local.memory` said of it. `tokens_per_s` is sampled
    tokens over `rollout_s`, `engine_busy_s` those of `rollout_s` in which the engine had a turn to
    sample. `waiting_s` is the part of it that a place for an episode stood empty, on average,
    because others were not done (`turnwise.rollout.waiting_s`); None where episodes of several
    steps are played at once. On slime the trainer's numbers are in rows of their own (`SlimeRow`).
    """

    step: int
    kind: Literal["train"] = "train"
    reward_mean: float | None
    reward_stderr: float | None
    coverage: float | None
    ledger: LedgerRow
    endings: dict[str, int]
    metrics: dict[str, MetricMean] = {}
    services: dict[str, str] = {}
    service_totals: dict[str, float] = {}
    loss: float | None
    kl: float | None
    entropy: float | None
    clip_fraction: float | None
    grad_norm: float | None
    max_logprob_diff: float | None
    trained_tokens: int | None
    sampled_tokens: int
    tokens_per_s: float | None
    groups: int
    groups_kept: int
    groups_dropped: dict[str, int]
    rollout_s: float
    train_s: float | None
    loop_lag_p50_ms: float | None
    loop_lag_max_ms: float | None
    mean_logprob_diff: float | None = None
    tis_mean: float | None = None
    tis_clip_fraction: float | None = None
    peak_memory_bytes: int | None = None
    predicted_memory_bytes: int | None = None
    engine_busy_s: float | None = None
    waiting_s: float | None = None


class SlimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """What slime says about training step `step`, under its own names; several rows a step.

    An optimiser step has a row of its own, with its number under `train/step`.
    """

    step: int
    kind: Literal["slime"] = "slime"
    numbers: dict[str, float | None]


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened after `step` training steps, `at` seconds since 1970.

    A `stall` is noticed `seconds` after the last episode ended; `stall over` says how long it was.
    """

    step: int
    kind: Literal["event"] = "event"
    event: str
    at: float
    seconds: float
    text: str


MetricsRow = EvalRow | TrainRow | SlimeRow | EventRow


class Outcome(Protocol):
    """What a row says of an episode; an `Episode` is one."""

    @property
    def group_id(self) -> str: ...
    @property
    def ending(self) -> Ending: ...
    @property
    def score(self) -> float | None: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...


def reward_fields(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """`reward_mean`, `reward_stderr`, `endings` and `metrics` of a training step's row.

    The mean is over scored rollouts, its error over the means of groups.
    """
    groups: dict[str, list[float]] = {}
    for one in outcomes:
        if one.score is not None:
            groups.setdefault(one.group_id, []).append(one.score)
    scores = np.array([score for group in groups.values() for score in group])
    means = np.array([sum(group) / len(group) for group in groups.values()])
    return {
        "reward_mean": float(scores.mean()) if scores.size else math.nan,
        "reward_stderr": (
            float(means.std(ddof=1) / np.sqrt(means.size)) if means.size > 1 else math.nan
        ),
        "endings": endings(outcomes),
        "metrics": metric_means(one.metrics for one in outcomes),
    }


def endings(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Episodes by the label of their ending, most frequent first."""
    return dict(Counter(one.ending.label for one in outcomes).most_common())


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


Numbers = dict[str, list[float | None]]
"""By task and trial; None where there is none."""


def compared_numbers(
    names: Iterable[str],
    episodes: Iterable[tuple[str, float | None, Mapping[str, float | None]]],
) -> dict[str, Numbers]:
    """The numbers of `names` as `EvalRow.compared` has them.

    Args:
        episodes: Task, score and metrics of each; one without a score has no numbers.
    """
    found: dict[str, Numbers] = {name: {} for name in names}
    for task, score, metrics in episodes:
        for name, numbers in found.items():
            numbers.setdefault(task, []).append(None if score is None else metrics.get(name))
    return found


def as_row(metrics: MetricsRow) -> Row:
    """The row as it stands in the file."""
    row: Row = plain(msgspec.to_builtins(metrics))
    return row


def read_metrics(path: Path) -> list[MetricsRow]:
    """The typed rows of a `metrics.jsonl`, in order; none where it is missing.

    Raises:
        ConfigError: naming file and line, if a line is no such row.
    """
    rows = []
    for number, row in enumerate(read_rows(path), start=1):
        try:
            rows.append(parse_row(row))
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: {error}") from None
    return rows


def parse_row(row: Row) -> MetricsRow:
    """The typed row; names that are not known here are left out.

    Raises:
        ValueError: saying which field is missing or of the wrong type.
    """
    kind: Any = row.get("kind")
    made = {"eval": EvalRow, "train": TrainRow, "slime": SlimeRow, "event": EventRow}
    if not isinstance(kind, str) or kind not in made:
        raise ValueError(f"kind: expected 'eval', 'train', 'slime' or 'event', found {kind!r}")
    try:
        found: MetricsRow = msgspec.convert(row, made[kind])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    return found

"""slime's log hooks: endings, coverage and the ledger beside slime's own numbers.

slime's own statistics are taken over scored samples and go to slime's trackers together with
ours, whose keys start with `rollout/turnwise/` and `eval/`. The run folder gets the rows and traces
that a run on this machine has, and what the trackers got in a row of its own
(`turnwise.slime.files`). Both hooks return True, which tells slime that all is logged: its default
would average over rewards that lost episodes don't have.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from slime.observability import (  # type: ignore[import-not-found]
    logging_utils,  # pants: no-infer-dep
    rollout_metrics,  # pants: no-infer-dep
)
from slime.observability.metric_utils import (  # type: ignore[import-not-found]
    compute_rollout_step,  # pants: no-infer-dep
)

from turnwise.episode import Episode
from turnwise.ledger import Ledger
from turnwise.rollout import waiting_s
from turnwise.run.metrics import (
    EvalRow,
    TrainRow,
    compared_numbers,
    endings,
    metric_means,
    reward_fields,
)
from turnwise.slime import accounts
from turnwise.slime.accounts import Period
from turnwise.slime.control import control_of
from turnwise.slime.files import files_of
from turnwise.slime.rewards import distinct
from turnwise.slime.samples import FACTS, read_episode, score_of
from turnwise.slime.shared import find_method, find_tokenizer, service_totals
from turnwise.trials import mean_score, pass_hat_k

SYNCHRONOUS = "slime.rollout.sglang_rollout.generate_rollout"
"""slime's `--rollout-function-path` where none is given."""
logger = logging.getLogger(__name__)


def rollout_log(
    rollout_id: int,
    args: Any,
    samples: list[Any],
    rollout_extra_metrics: Mapping[str, Any] | None,
    rollout_time: float,
) -> bool:
    """slime's `--custom-rollout-log-function-path`.

    Returns:
        True: all is logged. False for saved rollouts that are loaded again, which nobody played.

    Raises:
        LedgerImbalance: a rollout was started and never accounted for.
        RunError: the run folder's disk does not take the row.
    """
    if getattr(args, "load_debug_rollout_data", None):
        return False
    period = accounts.TRAIN.take()
    numbers = dict(rollout_extra_metrics or {})
    scored = [sample for sample in samples if score_of(sample) is not None]
    if scored:
        own = rollout_metrics.compute_metrics_from_samples(args, scored)
        numbers |= _prefixed(own, "rollout/")
        speed = rollout_metrics.compute_perf_metrics_from_samples(args, scored, rollout_time)
        numbers |= _prefixed(speed, "perf/")
    numbers |= _prefixed(period.metrics() | service_totals(), "rollout/turnwise/")
    logger.info("rollout %d: %s", rollout_id, period.equation())
    found = _track(args, numbers, rollout_id, "rollout/step")
    files = files_of(args)
    if files is not None:
        step = files.begin_rollout(rollout_id)
        row = train_row(args, step, period, samples, rollout_time)
        files.append(row, period.traces, find_tokenizer(args))
        files.append_slime(step, found)
        if (control := control_of(args)) is not None:
            control.rollout_made(step)
    period.check()
    return True


def eval_log(
    rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: Mapping[str, Any] | None
) -> bool:
    """slime's `--custom-eval-rollout-log-function-path`.

    `eval/NAME` is the mean score over tasks of their scored rollouts, `eval/NAME/stderr` clustered
    by task, `eval/NAME/coverage` the scored share, `eval/NAME/pass_hat_K` the chance that K
    rollouts of a task all pass. Every data set has a row of its own in the run folder, numbered by
    the training steps that the weights had seen.

    Returns:
        True: all is logged.

    Raises:
        LedgerImbalance: a rollout was started and never accounted for.
        RunError: the run folder's disk does not take the row.
    """
    period = accounts.EVAL.take()
    numbers = dict(extra_metrics or {})
    for name, dataset in data.items():
        numbers |= _dataset(args, name, dataset.get("samples") or [])
    numbers |= _prefixed(period.metrics() | service_totals(), "eval/turnwise/")
    logger.info("eval %d: %s", rollout_id, period.equation())
    found = _track(args, numbers, rollout_id, "eval/step")
    files = files_of(args)
    if files is not None:
        step = files.begin_eval(rollout_id)
        traces = period.traces
        for name, dataset in data.items():
            row = eval_row(args, step, name, dataset.get("samples") or [], period.seconds)
            files.append(row, traces, find_tokenizer(args))
            traces = []
        files.append_slime(step, found)
    period.check()
    return True


def train_row(
    args: Any, step: int, period: Period, samples: Sequence[Any], rollout_s: float
) -> TrainRow:
    """The row of a training step, as far as it is known before the step.

    Args:
        samples: What is trained on.
        rollout_s: Seconds that slime took to make them.
    """
    method = find_method(args)
    kept = len({sample.group_index for sample in samples})
    sampled = sum(one.metrics.get("sampled_tokens", 0.0) for one in period.ended)
    return TrainRow(
        step=step,
        **reward_fields(period.ended),
        coverage=period.ledger.coverage,
        ledger=period.ledger.as_dict(),
        services=dict(method.players()),
        service_totals=service_totals(),
        loss=None,
        kl=None,
        entropy=None,
        clip_fraction=None,
        grad_norm=None,
        max_logprob_diff=None,
        trained_tokens=sum(
            sum(sample.loss_mask or ()) for sample in samples if not sample.remove_sample
        ),
        sampled_tokens=int(sampled),
        tokens_per_s=sampled / rollout_s if rollout_s > 0 else None,
        groups=kept + sum(period.dropped.values()),
        groups_kept=kept,
        groups_dropped=period.dropped,
        rollout_s=rollout_s,
        waiting_s=_waiting_s(args, period),
        train_s=None,
        loop_lag_p50_ms=1e3 * period.lag_p50_s,
        loop_lag_max_ms=1e3 * period.lag_max_s,
    )


def _waiting_s(args: Any, period: Period) -> float | None:
    """As of `TrainRow`. slime's own rollout starts all episodes of a step at once; where another
    takes its place, as the fully asynchronous one, nobody waits for the longest of a step."""
    if getattr(args, "rollout_function_path", None) not in (None, SYNCHRONOUS):
        return None
    return waiting_s([one.at for one in period.ended], max(1, len(period.ended)))


def eval_row(args: Any, step: int, dataset: str, samples: Sequence[Any], seconds: float) -> EvalRow:
    """The row of an evaluation on one data set."""
    episodes = _episodes(samples)
    ledger = Ledger()
    for episode in episodes:
        ledger.start(episode.rollout_id)
        ledger.settle(episode)
    scores: dict[str, list[float | None]] = {}
    for episode in episodes:
        scores.setdefault(episode.task_id, []).append(episode.score)
    estimate = mean_score(scores)
    method = find_method(args)
    return EvalRow(
        step=step,
        dataset=dataset,
        reward_mean=estimate.mean,
        reward_stderr=estimate.stderr,
        coverage=ledger.coverage,
        ledger=ledger.as_dict(),
        endings=endings(episodes),
        metrics=metric_means(episode.metrics for episode in episodes),
        baselines={},
        services=dict(method.players()),
        service_totals=service_totals(),
        eval_s=seconds,
        scores=scores,
        compared=compared_numbers(
            method.compared, ((one.task_id, one.score, one.metrics) for one in episodes)
        ),
        pictures=list(method.pictures()),
    )


def _episodes(samples: Sequence[Any]) -> list[Episode]:
    found = [(sample.metadata or {}).get(FACTS) for sample in distinct(samples)]
    return [read_episode(facts) for facts in found if facts is not None]


def _dataset(args: Any, name: str, samples: Sequence[Any]) -> dict[str, Any]:
    rollouts = distinct(samples)
    scores: dict[str, list[float | None]] = {}
    found: Counter[str] = Counter()
    for sample in rollouts:
        facts = (sample.metadata or {}).get(FACTS, {})
        task = facts.get("task_id") or str(sample.prompt)
        scores.setdefault(task, []).append(score_of(sample))
        found[facts.get("ending", "unknown")] += 1
    estimate = mean_score(scores)
    numbers: dict[str, Any] = {
        f"eval/{name}": estimate.mean,
        f"eval/{name}/stderr": estimate.stderr,
        f"eval/{name}/coverage": estimate.trials / len(rollouts) if rollouts else math.nan,
        f"eval/{name}/tasks": estimate.tasks,
        **{f"eval/{name}/ending/{label}": count for label, count in sorted(found.items())},
    }
    trials = max((len(row) for row in scores.values()), default=0)
    for k in range(1, trials + 1):
        numbers[f"eval/{name}/pass_hat_{k}"] = pass_hat_k(scores, k).mean
    scored = [sample for sample in samples if score_of(sample) is not None]
    if scored:
        own = rollout_metrics.compute_metrics_from_samples(args, scored)
        numbers |= _prefixed(own, f"eval/{name}/")
    return numbers


def _track(args: Any, numbers: Mapping[str, Any], rollout_id: int, step_key: str) -> dict[str, Any]:
    """Gives the numbers to slime's trackers; returns those that are some."""
    found = {
        key: value
        for key, value in numbers.items()
        if not (isinstance(value, float) and math.isnan(value))
    }
    found[step_key] = compute_rollout_step(args, rollout_id)
    logging_utils.log(args, found, step_key=step_key)
    return found


def _prefixed(numbers: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {f"{prefix}{key}": value for key, value in numbers.items()}

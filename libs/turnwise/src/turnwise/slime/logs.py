"""slime's log hooks: endings, coverage and the ledger beside slime's own numbers.

slime's own statistics are taken over scored samples and go to slime's trackers together with
ours, whose keys start with `rollout/turnwise/` and `eval/`. Both hooks return True, which tells
slime that all is logged: its default would average over rewards that lost episodes don't have.
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

from turnwise.slime import books
from turnwise.slime.hooks import service_metrics
from turnwise.slime.rewards import distinct
from turnwise.slime.samples import FACTS, score_of
from turnwise.trials import mean_score, pass_hat_k

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
    """
    if getattr(args, "load_debug_rollout_data", None):
        return False
    page = books.TRAIN.take()
    numbers = dict(rollout_extra_metrics or {})
    scored = [sample for sample in samples if score_of(sample) is not None]
    if scored:
        own = rollout_metrics.compute_metrics_from_samples(args, scored)
        numbers |= _prefixed(own, "rollout/")
        speed = rollout_metrics.compute_perf_metrics_from_samples(args, scored, rollout_time)
        numbers |= _prefixed(speed, "perf/")
    numbers |= _prefixed(page.metrics() | service_metrics(), "rollout/turnwise/")
    logger.info("rollout %d: %s", rollout_id, page.equation())
    _log(args, numbers, rollout_id, "rollout/step")
    page.check()
    return True


def eval_log(
    rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: Mapping[str, Any] | None
) -> bool:
    """slime's `--custom-eval-rollout-log-function-path`.

    `eval/NAME` is the mean score over tasks of their scored rollouts, `eval/NAME/stderr` clustered
    by task, `eval/NAME/coverage` the scored share, `eval/NAME/pass_hat_K` the chance that K
    rollouts of a task all pass.

    Returns:
        True: all is logged.

    Raises:
        LedgerImbalance: a rollout was started and never accounted for.
    """
    page = books.EVAL.take()
    numbers = dict(extra_metrics or {})
    for name, dataset in data.items():
        numbers |= _dataset(args, name, dataset.get("samples") or [])
    numbers |= _prefixed(page.metrics() | service_metrics(), "eval/turnwise/")
    logger.info("eval %d: %s", rollout_id, page.equation())
    _log(args, numbers, rollout_id, "eval/step")
    page.check()
    return True


def _dataset(args: Any, name: str, samples: Sequence[Any]) -> dict[str, Any]:
    rollouts = distinct(samples)
    scores: dict[str, list[float | None]] = {}
    endings: Counter[str] = Counter()
    for sample in rollouts:
        facts = (sample.metadata or {}).get(FACTS, {})
        task = facts.get("task_id") or str(sample.prompt)
        scores.setdefault(task, []).append(score_of(sample))
        endings[facts.get("ending", "unknown")] += 1
    estimate = mean_score(scores)
    numbers: dict[str, Any] = {
        f"eval/{name}": estimate.mean,
        f"eval/{name}/stderr": estimate.stderr,
        f"eval/{name}/coverage": estimate.trials / len(rollouts) if rollouts else math.nan,
        f"eval/{name}/tasks": estimate.tasks,
        **{f"eval/{name}/ending/{label}": count for label, count in sorted(endings.items())},
    }
    trials = max((len(row) for row in scores.values()), default=0)
    for k in range(1, trials + 1):
        numbers[f"eval/{name}/pass_hat_{k}"] = pass_hat_k(scores, k).mean
    scored = [sample for sample in samples if score_of(sample) is not None]
    if scored:
        own = rollout_metrics.compute_metrics_from_samples(args, scored)
        numbers |= _prefixed(own, f"eval/{name}/")
    return numbers


def _log(args: Any, numbers: Mapping[str, Any], rollout_id: int, step_key: str) -> None:
    found = {
        key: value
        for key, value in numbers.items()
        if not (isinstance(value, float) and math.isnan(value))
    }
    found[step_key] = compute_rollout_step(args, rollout_id)
    logger.info("%s %d: %s", step_key.split("/")[0], rollout_id, found)
    logging_utils.log(args, found, step_key=step_key)


def _prefixed(numbers: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {f"{prefix}{key}": value for key, value in numbers.items()}

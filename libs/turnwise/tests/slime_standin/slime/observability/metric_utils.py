"""Where a rollout stands on the axis of a tracker."""

from __future__ import annotations

from typing import Any


def compute_rollout_step(args: Any, rollout_id: int) -> int:
    if not args.wandb_always_use_train_step:
        return rollout_id
    samples: int = args.rollout_batch_size * args.n_samples_per_prompt
    return rollout_id * samples // int(args.global_batch_size)

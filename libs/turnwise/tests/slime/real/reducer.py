"""The weight of each token in the loss, by slime's own reducer.

`cp_utils` of slime's Megatron backend runs as it is; of Megatron it needs two sizes, which are 1
here. What Megatron and slime divide by afterwards is applied as `loss_function` has it: the
rollouts of the step, or the sum over rows of max(1, trained tokens).
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import slime.backends
import torch
from slime.utils.misc import load_function
from turnwise.objective import token_weights


def _cp_utils() -> Any:
    mpu = types.ModuleType("megatron.core.mpu")
    mpu.get_context_parallel_world_size = lambda: 1  # type: ignore[attr-defined]
    mpu.get_context_parallel_rank = lambda: 0  # type: ignore[attr-defined]
    core = types.ModuleType("megatron.core")
    core.mpu = mpu  # type: ignore[attr-defined]
    sys.modules.update({"megatron": types.ModuleType("megatron"), "megatron.core": core})
    sys.modules["megatron.core.mpu"] = mpu
    # Its own __init__ imports all of Megatron.
    name = "slime.backends.megatron_utils"
    package = types.ModuleType(name)
    package.__path__ = [str(Path(slime.backends.__path__[0]) / "megatron_utils")]
    sys.modules[name] = package
    return importlib.import_module(f"{name}.cp_utils")


get_sum_of_sample_mean = _cp_utils().get_sum_of_sample_mean


def weights(parts: Sequence[dict[str, Any]], *, per_token: bool) -> dict[int, Any]:
    """float64[response] of each row of the step, by its place in the training data.

    Args:
        parts: What the ranks of one step hold, as `RolloutManager` splits it.
        per_token: `--calculate-per-token-loss`.
    """
    leaves: dict[int, torch.Tensor] = {}
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for part in parts:
        (rollouts,) = part["global_batch_sizes"]
        for rows in part["micro_batch_indices"]:
            masks = [part["loss_masks"][row] for row in rows]
            places = [part["partition"][row] for row in rows]
            lengths = [part["response_lengths"][row] for row in rows]
            for place, length in zip(places, lengths, strict=True):
                leaves[place] = torch.zeros(length, dtype=torch.float64, requires_grad=True)
            denominators = [part["rollout_mask_sums"][row] for row in rows]
            reduce = get_sum_of_sample_mean(None, lengths, masks, denominators, per_token)
            total = total + reduce(torch.cat([leaves[place] for place in places]))
            tokens += sum(max(1, int(mask.sum())) for mask in masks)
    (total / (tokens if per_token else rollouts)).backward()
    return {place: np.asarray(leaf.grad) for place, leaf in leaves.items()}


def compare(
    args: Any, objective: str, train_data: dict[str, Any], parts: list[dict[str, Any]]
) -> float:
    """The largest relative difference between slime's weights and the reference's.

    A lost rollout has no trained token and stays one of slime's rollouts; for the mean over tokens
    slime counts its masked row as one token.
    """
    if objective == "turn-mean":
        for part in parts:
            load_function("turnwise.slime.train_data")(args, 0, part)
    found = weights(parts, per_token=args.calculate_per_token_loss)
    counts = [sum(mask) for mask in train_data["loss_masks"]]
    assert sorted(found) == list(range(len(counts)))
    trained = [place for place, count in enumerate(counts) if count]
    ids = [train_data["rollout_ids"][place] for place in trained]
    expected = token_weights([counts[place] for place in trained], ids, objective)  # type: ignore[arg-type]
    lost = len(set(train_data["rollout_ids"])) - len(set(ids))
    share = len(set(ids)) / (len(set(ids)) + lost)
    if args.calculate_per_token_loss:
        share = sum(counts) / (sum(counts) + len(counts) - len(trained))
    worst = 0.0
    for place, weight in zip(trained, expected * share, strict=True):
        assert np.ptp(found[place]) == 0
        worst = max(worst, abs(found[place][0] / weight - 1))
    assert all(not found[place].any() for place in set(found) - set(trained))
    assert worst < 1e-5, (objective, worst)
    return worst

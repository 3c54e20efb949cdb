"""Importance correction for tokens that other weights sampled than are trained.

The engine that sampled a token gave it log-prob r_t, the trainer, before the first update on the
rollout, o_t. They differ by rounding, and by an update where rollouts are sampled a step ahead.
With it the clipped loss takes o_t as its old log-prob, and each token's policy loss is multiplied
by a weight of the ratio

    token:      rho_t = exp(o_t - r_t)
    sequence:   rho_t = exp(sum of o - r over the segment of t)
    geometric:  rho_t = exp(mean of o - r over the segment of t)

- `truncate`, truncated importance sampling (TIS): the weight is rho held in [low, high]. slime's
  `--use-tis` with `--tis-clip`, `--tis-clip-low` (`vanilla_tis_function` in
  slime/backends/megatron_utils/loss.py at 624b824a; Yao et al. 2025,
  https://fengyao.notion.site/off-policy-rl).
- `mask`, masked importance sampling (MIS): the weight is rho; a token whose rho lies outside
  [low, high] leaves the loss, its KL and entropy too, and the denominators stay what they were.
  `tis_mode: mask` and `tis_level` of slime's examples/train_infer_mismatch_helper/mis.py.

`turnwise.objective.importance_weights` is the same on NumPy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.objective import LOG_RATIO_CLAMP, TisLevel, TisMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """How it is done; see the module.

    Attributes:
        high: `--tis-clip`.
        low: `--tis-clip-low`.
    """

    high: float = 2.0
    low: float = 0.0
    mode: TisMode = "truncate"
    level: TisLevel = "token"


@dataclass(frozen=True, slots=True)
class Corrected:
    """For each of N trained tokens, without gradient.

    Attributes:
        weights: Of the policy loss.
        kept: Whether the token is in the loss at all.
        ratios: rho, before any bound.
        bounded: Where rho lay outside the bounds.
    """

    weights: Tensor
    kept: Tensor
    ratios: Tensor
    bounded: Tensor


def correct(
    old_N: Tensor, rollout_N: Tensor, segment_N: Tensor, correction: Correction
) -> Corrected:
    """The weights of a row's trained tokens.

    Args:
        old_N: The trainer's log-probs.
        rollout_N: The engine's.
        segment_N: int64[N], the segment of each, from 0.
    """
    difference = (old_N - rollout_N).detach()
    if correction.level != "token":
        segments = int(segment_N.max()) + 1
        sums = difference.new_zeros(segments).index_add_(0, segment_N, difference)
        if correction.level == "geometric":
            sums = sums / torch.bincount(segment_N, minlength=segments).clamp(min=1)
        difference = sums[segment_N]
    ratios = difference.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP).exp()
    bounded = (ratios < correction.low) | (ratios > correction.high)
    if correction.mode == "mask":
        return Corrected(ratios, ~bounded, ratios, bounded)
    return Corrected(
        ratios.clamp(correction.low, correction.high), torch.ones_like(bounded), ratios, bounded
    )

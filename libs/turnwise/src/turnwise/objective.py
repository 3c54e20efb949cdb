"""The GRPO objective on NumPy arrays: what the embedded trainer's loss must equal.

The loss of one optimiser step is a weighted sum over its trained tokens,

    L = sum_t w_t * (clip_loss_t + kl_loss_coef * kl_t - entropy_coef * entropy_t),

with the weights of `token_weights`. Names and defaults are slime's (0.3.1).

| objective          | the loss is                                                              |
|--------------------|--------------------------------------------------------------------------|
| turn-mean          | the mean over rollouts of the mean over their segments of the token mean |
|                    | of each, as in AgentFlow (Li et al. 2025, arXiv 2510.05592)              |
| rollout-token-mean | the mean over rollouts of the mean over their tokens, however they are   |
|                    | cut into segments: slime's default                                       |
| global-token-mean  | one mean over all tokens of the optimiser step: slime's                  |
|                    | --calculate-per-token-loss, the token mean of DAPO                       |

Shapes: T trained tokens, laid end to end over segments; S segments. All arrays are float64
unless said otherwise, log-probs are natural logarithms.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Objective = Literal["turn-mean", "rollout-token-mean", "global-token-mean"]

"""How the loss is averaged over tokens."""

TisMode = Literal["truncate", "mask"]
TisLevel = Literal["token", "sequence", "geometric"]

KL_CLAMP = 10.0
"""slime clamps `low_var_kl` per token to [-10, 10]."""

LOG_RATIO_CLAMP = 20.0
"""slime's `compute_mis_weights` clamps the logarithm of a ratio to [-20, 20]."""


def clipped_policy_loss(
    logprobs_T: Floats, old_logprobs_T: Floats, advantages_T: Floats, low: float, high: float
) -> tuple[Floats, NDArray[np.bool_]]:
    """Clipped surrogate loss per token, and where the clip was active.

    PPO, equation 7 of Schulman et al. 2017 (arXiv 1707.06347), with separate bounds as in DAPO,
    equation 8 of Yu et al. 2025 (arXiv 2503.14476): the ratio is held in [1 - low, 1 + high]
    (`--eps-clip`, `--eps-clip-high`).

    Returns:
        loss float64[T], clipped bool[T].
    """
    ratio_T = np.exp(logprobs_T - old_logprobs_T)
    free_T = -ratio_T * advantages_T
    held_T = -np.clip(ratio_T, 1.0 - low, 1.0 + high) * advantages_T
    return np.maximum(free_T, held_T), held_T > free_T


def low_var_kl(logprobs_T: Floats, ref_logprobs_T: Floats) -> Floats:
    """The k3 estimate of KL(policy || reference) per token, clamped as slime does.

    exp(d) - 1 - d with d = ref - policy: never negative, unbiased for tokens of the policy
    (Schulman, "Approximating KL Divergence", 2020).
    """
    difference_T = ref_logprobs_T - logprobs_T
    return np.clip(np.expm1(difference_T) - difference_T, -KL_CLAMP, KL_CLAMP)


def importance_weights(
    old_logprobs_T: Floats,
    rollout_logprobs_T: Floats,
    segment_T: NDArray[np.int64],
    *,
    low: float,
    high: float,
    mode: TisMode = "truncate",
    level: TisLevel = "token",
) -> tuple[Floats, NDArray[np.bool_]]:
    """Weights of the policy loss where other weights sampled than are trained.

    The formulas and their source are in `turnwise.local.correction`.

    Args:
        old_logprobs_T: The trainer's, before the first update on the rollout.
        rollout_logprobs_T: The engine's.
        segment_T: The segment of each token.

    Returns:
        weights float64[T], 0 for a token that `mask` takes out; bounded bool[T], where the ratio
        lay outside [low, high].
    """
    difference_T = old_logprobs_T - rollout_logprobs_T
    if level != "token":
        means = {s: difference_T[segment_T == s].mean() for s in np.unique(segment_T)}
        counts = {s: int((segment_T == s).sum()) if level == "sequence" else 1 for s in means}
        difference_T = np.array([means[s] * counts[s] for s in segment_T])
    ratio_T = np.exp(np.clip(difference_T, -LOG_RATIO_CLAMP, LOG_RATIO_CLAMP))
    bounded_T = (ratio_T < low) | (ratio_T > high)
    if mode == "mask":
        return np.where(bounded_T, 0.0, ratio_T), bounded_T
    return np.clip(ratio_T, low, high), bounded_T


def token_weights(
    trained_tokens_S: Sequence[int], rollout_S: Sequence[Hashable], objective: Objective
) -> Floats:
    """The weight of each token of each segment in the loss; see the module's table.

    Args:
        trained_tokens_S: Trained tokens per segment.
        rollout_S: The rollout that each segment belongs to.

    Returns:
        float64[S]: every token of segment s weighs `weights[s]`; over all tokens they sum to 1.

    Raises:
        ValueError: if a segment has no trained token, or the lengths differ.
    """
    counts_S = _counts(trained_tokens_S, rollout_S)
    if objective == "global-token-mean":
        return np.full(counts_S.shape, 1.0 / counts_S.sum())
    rollouts = len(set(rollout_S))
    sums_S = rollout_mask_sums(trained_tokens_S, rollout_S, objective)
    weights_S: Floats = 1.0 / (sums_S * rollouts)
    return weights_S


def rollout_mask_sums(
    trained_tokens_S: Sequence[int],
    rollout_S: Sequence[Hashable],
    objective: Literal["turn-mean", "rollout-token-mean"],
) -> Floats:
    """What the summed loss of each segment is divided by, before the mean over rollouts.

    slime calls this `rollout_mask_sums`: the trained tokens of the segment's whole rollout; for the
    turn mean, those of the segment itself times the segments of its rollout.

    Args, Raises: as `token_weights`.

    Returns:
        float64[S].
    """
    counts_S = _counts(trained_tokens_S, rollout_S)
    tokens: dict[Hashable, float] = {}
    segments: dict[Hashable, int] = {}
    for rollout, count in zip(rollout_S, trained_tokens_S, strict=True):
        tokens[rollout] = tokens.get(rollout, 0.0) + count
        segments[rollout] = segments.get(rollout, 0) + 1
    if objective == "turn-mean":
        segments_S: Floats = np.array([segments[rollout] for rollout in rollout_S], np.float64)
        return counts_S * segments_S
    return np.array([tokens[rollout] for rollout in rollout_S])


def _counts(trained_tokens_S: Sequence[int], rollout_S: Sequence[Hashable]) -> Floats:
    if len(trained_tokens_S) != len(rollout_S):
        raise ValueError(f"{len(trained_tokens_S)} token counts for {len(rollout_S)} segments")
    for index, count in enumerate(trained_tokens_S):
        if count < 1:
            raise ValueError(f"segment {index} has {count} trained tokens")
    return np.asarray(trained_tokens_S, dtype=np.float64)

"""The objective `turn-mean` in slime: the mean over rollouts of the mean over their turns.

slime divides the summed loss of a sample by `rollout_mask_sums`, the trained tokens of its whole
rollout, and the step's sum by its number of rollouts: a token mean over each rollout. With

    rollout_mask_sums = (turns of the rollout) x (trained tokens of this turn)

the same sum is the mean over rollouts of the mean over turns of the token mean. A rank of the
trainer holds some turns of a rollout only, so their number travels with the samples: as
`metadata["round_number"]`, which slime ships to the trainer and averages in its
`multi_turn_metric/round_number_*`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ROUNDS = "round_number"


def mark_turns(samples: Sequence[Any]) -> None:
    """Writes into the samples of one rollout how many of them have trained tokens, at least 1."""
    trained = sum(not one.remove_sample and any(one.loss_mask or ()) for one in samples)
    for one in samples:
        one.metadata = {**(one.metadata or {}), ROUNDS: max(1, trained)}


def turn_mean(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """slime's `--rollout-data-postprocess-path`: writes the denominators of the turn mean.

    Called by the trainer before the step, on every rank with its share of the samples.

    Args:
        rollout_data: `loss_masks` int[response] of each sample, `round_number` of each, and
            `rollout_mask_sums` float32[samples], which is overwritten.

    Raises:
        KeyError: the samples were not made by `turnwise.slime.generate` with this objective.
    """
    if ROUNDS not in rollout_data:
        raise KeyError(
            f"{ROUNDS}: the samples do not say how many turns their rollouts have; objective "
            "turn-mean needs turnwise.slime.generate"
        )
    sums = rollout_data["rollout_mask_sums"]
    pairs = zip(rollout_data[ROUNDS], rollout_data["loss_masks"], strict=True)
    for place, (turns, mask) in enumerate(pairs):
        sums[place] = turns * mask.sum()

"""What is done in slime's trainer: the objective `turn-mean`, and its numbers for the run folder.

`turn-mean` is the mean over rollouts of the mean over their turns. slime divides the summed loss of
a sample by `rollout_mask_sums`, the trained tokens of its whole rollout, and the step's sum by its
number of rollouts: a token mean over each rollout. With

    rollout_mask_sums = (turns of the rollout) x (trained tokens of this turn)

the same sum is the mean over rollouts of the mean over turns of the token mean. A rank of the
trainer holds some turns of a rollout only, so their number travels with the samples: as
`metadata["round_number"]`, which slime ships to the trainer and averages in its
`multi_turn_metric/round_number_*`.

slime gives what it measures to its trackers through one function, `logging_utils.log`. In the
trainer's processes it is wrapped, so that every rank that logs also writes the numbers into the
run folder (`turnwise.slime.files`); in the rollout's process our log hooks do that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slime.observability import (  # type: ignore[import-not-found]
    logging_utils,  # pants: no-infer-dep
)

from turnwise.slime.files import files_of

ROUNDS = "round_number"


def mark_turns(samples: Sequence[Any]) -> None:
    """Writes into the samples of one rollout how many of them have trained tokens, at least 1."""
    trained = sum(not one.remove_sample and any(one.loss_mask or ()) for one in samples)
    for one in samples:
        one.metadata = {**(one.metadata or {}), ROUNDS: max(1, trained)}


def train_data(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """slime's `--rollout-data-postprocess-path`, called by every rank of the trainer before a step.

    Args:
        rollout_data: This rank's share of the samples; see `turn_mean`.

    Raises:
        KeyError: see `turn_mean`.
    """
    _TrainerLog.rollout_id = rollout_id
    if (files := files_of(args)) is not None:
        files.leave_sign(f"begins training step {rollout_id + 1}")
    if not isinstance(logging_utils.log, _TrainerLog):
        logging_utils.log = _TrainerLog(logging_utils.log)
    asked = (getattr(args, "turnwise", None) or {}).get("objective") == "turn-mean"
    if asked or ROUNDS in rollout_data:
        turn_mean(args, rollout_id, rollout_data)


class _TrainerLog:
    """slime's `logging_utils.log`, and a row of the run folder for all that it is given.

    Attributes:
        rollout_id: The rollout that is trained on.
    """

    rollout_id = 0

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log

    def __call__(self, args: Any, metrics: Mapping[str, Any], step_key: str) -> None:
        self._log(args, metrics, step_key)
        files = files_of(args)
        if files is not None:
            files.append_slime(self.rollout_id + 1, metrics)
            files.leave_sign(f"logged training step {self.rollout_id + 1}")


def turn_mean(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """Writes the denominators of the turn mean.

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

"""What a training step does to the policy: from groups of scored rollouts to optimiser steps.

1. deal the rollouts of kept groups into `num_steps_per_rollout` parts, all segments of a rollout
   together;
2. compare engine and trainer on every token that is trained on: the later parts before any update,
   the first by its own update;
3. one optimiser step a part, with the engine's log-probs as the old ones, or the trainer's from
   before the first update with a correction (`turnwise.local.correction`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tokendelta
from numpy.typing import NDArray
from torch import Tensor

from turnwise.command import RunError
from turnwise.episode import Episode
from turnwise.group import Group
from turnwise.local.adapters import add_adapters, trained, without_adapters
from turnwise.local.options import TrainOptions
from turnwise.local.update import (
    Floats,
    TrainRow,
    UpdateMetrics,
    Updater,
    differences,
    train_rows,
    trained_logprobs,
)
from turnwise.objective import Objective, token_weights
from turnwise.rollout import derive_seed
from turnwise.run.traces import Trained, TrainerNumbers
from turnwise.stopping import logprobs_differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What the optimiser steps of a training step did.

    Attributes:
        updates: One a part of the rollouts.
        max_logprob_diff, mean_logprob_diff: Between engine and trainer over the trained tokens,
            before the first update.
        trained: What was found of the trained tokens.
    """

    updates: list[UpdateMetrics]
    max_logprob_diff: float
    mean_logprob_diff: float
    trained: Trained


class Learner:
    """Owns the policy's weights and its optimiser.

    Attributes:
        updater: With the optimiser.
        sampler: With a lag, the trained weights before the last update, on the host and in the
            order of `adapters.trained`: those that sample the next rollouts.

    Raises:
        ConfigError: the options need a package that is not installed.
    """

    def __init__(self, options: TrainOptions, objective: Objective, model: Any) -> None:
        self.options, self.model = options, model
        self._objective = objective
        if options.lora_rank:
            seed = derive_seed(options.seed, "adapters")
            add_adapters(model, rank=options.lora_rank, alpha=options.lora_alpha, seed=seed)
        self.updater = Updater(model, options.update_settings())
        self._reference = model
        if options.use_kl_loss and not options.lora_rank:
            self._reference = copy.deepcopy(model).requires_grad_(False)
        self.sampler: list[Tensor] | None = None

    def learn(self, groups: Sequence[Group], step: int) -> Updated:
        """The optimiser steps of training step `step`.

        Raises:
            RunError: if engine and trainer disagree, or a loss is not finite.
        """
        options = self.options
        if options.rollout_lag:
            weights = (weight for _, weight in trained(self.model))
            self.sampler = [weight.detach().to("cpu", copy=True) for weight in weights]
        rollouts = kept_rollouts(groups)
        rng = np.random.default_rng(derive_seed(options.seed, "update", step))
        order = rng.permutation(len(rollouts))
        split = np.array_split(order, min(options.num_steps_per_rollout, max(len(order), 1)))
        dealt = [_dealt([rollouts[i] for i in part]) for part in split]
        owners = [[one.owner for one in segments] for segments in dealt if segments]
        parts = [self._rows(segments) for segments in dealt if segments]
        # The first part's log-probs are compared by its update, at no cost.
        later = [row for rows in parts[1:] for row in rows]
        logprobs = self.updater.logprobs(later)
        found = differences(later, logprobs)
        largest, mean = float(found.max(initial=0.0)), float(found.mean()) if found.size else 0.0
        self._check_difference(largest, mean, step)
        if options.use_tis:
            old = iter(logprobs)
            parts = [
                [replace(row, old_logprobs=next(old) if place else None) for row in rows]
                for place, rows in enumerate(parts)
            ]
        self.updater.set_lr(options.lr_share(step))
        updates: list[UpdateMetrics] = []
        for rows in parts:
            updates.append(self.updater.update(rows))
            if len(updates) == 1:
                first = updates[0]
                largest = max(largest, first.max_logprob_difference)
                mean = float(
                    np.average(
                        [mean, first.mean_logprob_difference],
                        weights=[found.size, first.trained_tokens],
                    )
                )
                self._check_difference(largest, mean, step)
        return Updated(
            updates=updates,
            max_logprob_diff=largest,
            mean_logprob_diff=mean,
            trained=_trained(owners, parts, logprobs, updates),
        )

    def _check_difference(self, largest: float, mean: float, step: int) -> None:
        most, most_mean = self.options.logprob_limits()
        what = "the log-prob of a sampled token"
        said = logprobs_differ(largest, most, what) or logprobs_differ(
            mean, most_mean, "the log-probs of sampled tokens on average", "--mean-logprob-diff"
        )
        if said:
            raise RunError(f"step {step}: {said}")

    def rows(self, rollouts: Sequence[tuple[Episode, NDArray[np.float64]]]) -> list[TrainRow]:
        """Packed rows of an optimiser step, from rollouts with the advantages of their segments."""
        dealt = _dealt(rollouts)
        return self._rows(dealt) if dealt else []

    def _rows(self, dealt: Sequence[_Dealt]) -> list[TrainRow]:
        options = self.options
        weights_S = token_weights(
            [one.sample.trained_tokens for one in dealt],
            [one.owner[0] for one in dealt],
            self._objective,
        )
        rows = train_rows(
            [one.sample for one in dealt],
            [one.advantage for one in dealt],
            weights_S,
            max_tokens=options.max_tokens_per_gpu,
        )
        if not options.use_kl_loss:
            return rows
        with without_adapters(self._reference):
            references = trained_logprobs(self._reference, rows, self.updater.settings)
        return [
            replace(row, ref_logprobs=reference)
            for row, reference in zip(rows, references, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Dealt:
    """A segment to train on, whose owner is a rollout and the segment's number in it."""

    sample: tokendelta.Sample
    owner: tuple[str, int]
    advantage: float


def _dealt(rollouts: Sequence[tuple[Episode, NDArray[np.float64]]]) -> list[_Dealt]:
    return [
        _Dealt(segment, (episode.rollout_id, number), float(advantage))
        for episode, advantages_S in rollouts
        for number, (segment, advantage) in enumerate(
            zip(episode.segments, advantages_S, strict=True)
        )
        if segment.trained_tokens
    ]


def _trained(
    owners: Sequence[Sequence[tuple[str, int]]],
    parts: Sequence[Sequence[TrainRow]],
    later: Sequence[Floats],
    updates: Sequence[UpdateMetrics],
) -> Trained:
    """What was found, by segment.

    Args:
        owners: Of each part's samples.
        later: The trainer's log-probs of each row of all parts but the first.
    """
    first = [tokens.logprobs for update in updates[:1] for tokens in update.tokens]
    before = iter([*first, *later])
    found = {}
    for own, rows, update in zip(owners, parts, updates, strict=True):
        for row, tokens, trainer in zip(rows, update.tokens, before, strict=False):
            sample_N = row.batch.sample_index[row.segments]
            for sample in np.unique(sample_N):
                at = sample_N == sample
                found[own[sample]] = TrainerNumbers(
                    advantage=float(row.advantages[at][0]),
                    logprobs=trainer[at],
                    ratios=tokens.ratios[at],
                    clipped=tokens.clipped[at],
                )
    return found


def kept_rollouts(groups: Sequence[Group]) -> list[tuple[Episode, NDArray[np.float64]]]:
    """The scored rollouts of the groups that are trained on, with their segments' advantages."""
    return [
        (episode, group.segment_advantages(member))
        for group in groups
        if group.drop is None
        for member, episode in enumerate(group.episodes)
        if episode.score is not None and episode.segments
    ]

"""Episodes of several segments: one rollout, one advantage, weighed as the objective says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import tokendelta
from turnwise import objective
from turnwise.episode import Ending, Episode
from turnwise.group import make_groups
from turnwise.local.experiment import objective as objective_of
from turnwise.local.experiment import open_experiment
from turnwise.local.learner import Learner, kept_rollouts
from turnwise.local.options import TrainOptions
from turnwise.local.policy import LoadedPolicy
from turnwise.objective import Objective

from local.letters import LetterOptions, Letters

Make = Callable[..., Any]
SHAPES = (3, 1, 2, 2)
"""Segments of each rollout of the group."""
SCORES = (1.0, 0.0, 0.0, 1.0)


@pytest.fixture
def learner_for(make_policy: Make, tokenizer: Any) -> Callable[[Objective], Learner]:
    def make(name: Objective) -> Learner:
        options = TrainOptions(
            hf_checkpoint="memory", max_tokens_per_gpu=200,
            rollout_max_context_len=100, use_kl_loss=True, kl_loss_coef=0.1,
        )  # fmt: skip
        loaded = LoadedPolicy("memory", make_policy(), tokenizer)
        method = Letters(LetterOptions(objective=name))
        experiment = asyncio.run(open_experiment(options, method, loaded))
        return Learner(options, objective_of(options, experiment.method), loaded.model)

    return make


def episodes(samples: list[tokendelta.Sample]) -> list[Episode]:
    made, left = [], iter(samples)
    for number, (count, score) in enumerate(zip(SHAPES, SCORES, strict=True)):
        segments = tuple(next(left) for _ in range(count))
        name = f"1/0/{number}"
        made.append(Episode(name, "1/0", "a", segments, Ending.finished(), score, ()))
    return made


@pytest.mark.parametrize("name", get_args(Objective))
def test_the_torch_loss_is_the_mean_that_the_objective_names(
    name: Objective, learner_for: Callable[[Objective], Learner], make_samples: Make
) -> None:
    learner = learner_for(name)
    played = episodes(make_samples(sum(SHAPES)))
    kept = kept_rollouts(make_groups(played))
    rows = learner.rows(kept)
    assert all(np.ptp(found) == 0 for _, found in kept)
    advantages = {episode.rollout_id: found[0] for episode, found in kept}
    spread = np.array(SCORES).std(ddof=1) + 1e-6
    assert advantages == pytest.approx(
        {e.rollout_id: (s - 0.5) / spread for e, s in zip(played, SCORES, strict=True)}
    )
    new = {
        index: logprobs
        for row, found in zip(rows, learner.updater.logprobs(rows), strict=True)
        for index, logprobs in _by_sample(row.batch, found)
    }
    samples = [(e.rollout_id, segment) for e, _ in kept for segment in e.segments]
    losses: dict[str, list[np.ndarray[Any, Any]]] = {}
    for index, (rollout, sample) in enumerate(samples):
        old = sample.logprobs[sample.loss_mask != 0].astype(np.float64)
        advantage = np.full(len(old), advantages[rollout])
        # The reference is the policy itself here, so that its KL is 0.
        loss, _ = objective.clipped_policy_loss(new[index].astype(float), old, advantage, 0.2, 0.2)
        losses.setdefault(rollout, []).append(loss)
    if name == "turn-mean":
        expected = np.mean([np.mean([turn.mean() for turn in turns]) for turns in losses.values()])
    elif name == "rollout-token-mean":
        expected = np.mean([np.concatenate(turns).mean() for turns in losses.values()])
    else:
        expected = np.concatenate([turn for turns in losses.values() for turn in turns]).mean()
    metrics = learner.updater.update(rows)
    assert metrics.loss == pytest.approx(float(expected), rel=1e-4)
    assert metrics.kl == pytest.approx(0.0, abs=1e-6)
    assert metrics.trained_tokens == sum(sample.trained_tokens for _, sample in samples)


def test_a_segment_that_trains_nothing_does_not_count_as_a_turn(
    learner_for: Callable[[Objective], Learner], make_samples: Make
) -> None:
    learner = learner_for("turn-mean")
    one, other = make_samples(2)
    empty = tokendelta.Sample(
        ids=one.ids,
        prompt_length=one.prompt_length,
        loss_mask=np.zeros_like(one.loss_mask),
        logprobs=np.full_like(one.logprobs, np.nan),
        spans=(),
        weight=0.0,
    )
    made = [
        Episode("1", "g", "a", (one, empty), Ending.finished(), 1.0, ()),
        Episode("2", "g", "a", (other,), Ending.finished(), 0.0, ()),
    ]
    rows = learner.rows(kept_rollouts(make_groups(made)))
    weights = {
        index: float(found[0])
        for row in rows
        for index, found in _by_sample(row.batch, row.weights)
        if len(found)
    }
    assert weights == pytest.approx(
        {0: 1 / (2 * one.trained_tokens), 1: 1 / (2 * other.trained_tokens)}
    )


def test_a_segment_is_trained_with_its_own_credit(
    learner_for: Callable[[Objective], Learner], make_samples: Make
) -> None:
    learner = learner_for("global-token-mean")
    one, other, third = make_samples(3)
    made = [
        Episode("1", "g", "a", (one, other), Ending.finished(), 1.0, (), credit=(0.0, 0.5)),
        Episode("2", "g", "a", (third,), Ending.finished(), 0.0, (), credit=(1.0,)),
    ]
    rows = learner.rows(kept_rollouts(make_groups(made, std_normalization=False)))
    found = {
        index: set(advantages.tolist())
        for row in rows
        for index, advantages in _by_sample(row.batch, row.advantages)
    }
    assert found == {0: {0.0}, 1: {0.5}, 2: {0.0}}


def _by_sample(
    batch: tokendelta.MicroBatch, values_N: np.ndarray[Any, Any]
) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Values of trained tokens, cut where samples end."""
    bounds = batch.cu_seqlens.tolist()
    counts = [
        int((batch.loss_mask[a:b] != 0).sum()) for a, b in zip(bounds, bounds[1:], strict=False)
    ]
    parts = np.split(values_N, np.cumsum(counts)[:-1])
    return list(zip(batch.sample_index.tolist(), parts, strict=True))

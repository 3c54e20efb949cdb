"""Rewards and the statistics of groups, over distinct rollouts.

A rollout may have several samples; it counts once. A sample without a score (lost, cancelled)
shifts nobody's baseline: it gets advantage 0, carries no trained token, and its raw reward in
slime's training data is the mean of its scored group, so that slime's own averages do not move.

A method's `group_scores` are taken once a group, before any statistics: by the dynamic filter,
which sees it first, else by the post-processing. It is given the group's episodes as the samples'
metadata hold them: endings, scores, metrics and facts, without segments and transcripts.

What a segment earns beside its episode's score is added to its own sample, by the same rule as on
the local backend (`turnwise.group.credit_advantages`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from slime.rollout.filter_hub.base_types import (  # type: ignore[import-not-found]
    DynamicFilterOutput,  # pants: no-infer-dep
)

from turnwise.group import Drop, advantages, credit_advantages, drop_reason, scored_by_group, tells
from turnwise.method import Method
from turnwise.slime import accounts
from turnwise.slime.samples import CREDIT, DROPPED, FACTS, read_episode, reward_for, score_of
from turnwise.slime.shared import find_method

GROUP_BASELINE = frozenset({"grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"})
"""Estimators whose rewards slime centres by group."""
GROUP_SCALE = frozenset({"grpo", "gspo", "cispo"})
"""Estimators whose rewards it also divides by the group's deviation."""


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
    """slime's `--custom-rm-path`: the score that the episode ended with.

    Returns:
        For a sample its score as a float, None where the episode has none; under `--reward-key`
        a dict with that key. For a list of samples a list.
    """
    if isinstance(sample, list):
        return [_keyed(args, score_of(one)) for one in _flat(sample)]
    return _keyed(args, score_of(sample))


def post_process_rewards(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """slime's `--custom-reward-post-process-path`.

    Args:
        args: slime's: `advantage_estimator`, `rewards_normalization`, `grpo_std_normalization`.
        samples: All samples of a step, in any order; groups may differ in size.

    Returns:
        Raw and normalised rewards, one for each sample.

    Raises:
        ValueError: no sample of the step has a score, or the method scores a group wrongly.
    """
    samples = list(_flat(samples))
    for places in _places(samples).values():
        _score_group(args, _rollout_samples([samples[place] for place in places]))
    scores_N = np.array([_number(score_of(sample)) for sample in samples], dtype=np.float64)
    if samples and np.isnan(scores_N).all():
        raise ValueError(
            f"none of {len(samples)} samples has a score: every episode of the step was lost or "
            "cancelled; see the ledger in the log for the boundary"
        )
    raw_N = scores_N.copy()
    normalised_N = np.zeros_like(scores_N)
    for places in _places(samples).values():
        rollouts = _rollouts([samples[place] for place in places])
        scores_G = np.array([scores_N[places[members[0]]] for members in rollouts])
        advantages_G = _normalise(args, scores_G)
        scored = scores_G[~np.isnan(scores_G)]
        filler = scored.mean() if scored.size else np.nanmean(scores_N)
        for members, score, advantage in zip(rollouts, scores_G, advantages_G, strict=True):
            for member in members:
                raw_N[places[member]] = filler if np.isnan(score) else score
                normalised_N[places[member]] = 0.0 if np.isnan(score) else advantage
        for place, credit in _credits(args, samples, places).items():
            normalised_N[place] += credit
    return raw_N.tolist(), normalised_N.tolist()


def dynamic_filter(args: Any, samples: list[Any], **kwargs: Any) -> Any:
    """slime's `--dynamic-sampling-filter-path`: whether a group can teach anything.

    Drops a group with fewer than three quarters of its members scored (`too_few_scored_user`: the
    boundary that lost most), and one whose scores are all alike (`zero_std_1.0`, as slime names
    it) unless its segments' credit differs.

    Raises:
        StopRun: group after group was lost (`turnwise.stopping`): slime would sample for ever where
            a service is gone.
        ValueError: the method scores the group wrongly.
    """
    samples = list(_flat(samples))
    rollouts = _rollout_samples(samples)
    _score_group(args, rollouts)
    members = [rollout[0] for rollout in rollouts]
    scores_G = np.array([_number(score_of(sample)) for sample in members], dtype=np.float64)
    credits_N = np.array(list(_credits(args, samples, range(len(samples))).values()))
    drop = drop_reason(scores_G, require_spread=not tells([credits_N]))
    _check_losses(args, members, drop)
    if drop is Drop.ZERO_STD:
        return DynamicFilterOutput(False, f"zero_std_{round(float(np.nanmean(scores_G)), 1)}")
    if drop is Drop.TOO_FEW_SCORED:
        return DynamicFilterOutput(False, f"{drop}_{_main_cause(members)}")
    return DynamicFilterOutput(True)


def _check_losses(args: Any, members: Sequence[Any], drop: Drop | None) -> None:
    told = [facts for one in members if (facts := (one.metadata or {}).get(FACTS)) is not None]
    losses = [{"boundary": facts["boundary"], "error": facts["error"]} for facts in told]
    asked_for = any(facts["info"].get(DROPPED) for facts in told)
    batch = getattr(args, "rollout_batch_size", 0)
    accounts.TRAIN.count_group(drop, None if asked_for else losses, batch=batch)


def _score_group(args: Any, rollouts: Sequence[Sequence[Any]]) -> None:
    """Gives the members of a group the scores that the method gives it as a whole, once."""
    found = [(rollout[0].metadata or {}).get(FACTS) for rollout in rollouts]
    members = [facts for facts in found if facts is not None]
    if len(members) < len(found) or any("own_score" in facts for facts in members):
        return
    method = find_method(args)
    if type(method).group_scores is Method.group_scores:
        return
    # slime's groups are by index; those of the episodes are the same.
    episodes = [replace(read_episode(facts), group_id="group") for facts in members]
    for rollout, facts, episode in zip(
        rollouts, members, scored_by_group(episodes, method.group_scores), strict=True
    ):
        changed = {**facts, "own_score": facts["score"], "score": episode.score}
        for sample in rollout:
            sample.metadata = {**sample.metadata, FACTS: changed}
            if episode.score is not None:
                sample.reward = reward_for(args, episode.score, evaluation=False)
        if episode.score is not None:
            accounts.TRAIN.rescore(episode.rollout_id, episode.score)


def distinct(samples: Iterable[Any]) -> list[Any]:
    """The first sample of each rollout, in order."""
    return [rollout[0] for rollout in _rollout_samples(list(_flat(samples)))]


def _normalise(args: Any, scores_G: NDArray[np.float64]) -> NDArray[np.float64]:
    if not _centres(args):
        return scores_G
    return advantages(scores_G, std_normalization=_scales(args))


def _credits(args: Any, samples: Sequence[Any], places: Sequence[int]) -> dict[int, float]:
    """What the samples of a group at these places earn beside the score, by place; normalised as
    the scores are."""
    found: list[dict[int, tuple[float, int]]] = []
    for members in _rollouts([samples[place] for place in places]):
        told: dict[int, tuple[float, int]] = {}
        for place in (places[member] for member in members):
            credit = (samples[place].metadata or {}).get(CREDIT)
            if credit is not None:
                told[int(credit[0])] = float(credit[1]), place
        found.append(told)
    if not _centres(args):
        return {place: value for told in found for value, place in told.values()}
    values_G = [
        [
            told[segment][0] if segment in told else None
            for segment in range(max(told, default=-1) + 1)
        ]
        for told in found
    ]
    normalised = credit_advantages(values_G, std_normalization=_scales(args))
    return {
        place: float(values[segment])
        for told, values in zip(found, normalised, strict=True)
        for segment, (_, place) in told.items()
    }


def _centres(args: Any) -> bool:
    estimator = getattr(args, "advantage_estimator", "grpo")
    return estimator in GROUP_BASELINE and bool(getattr(args, "rewards_normalization", True))


def _scales(args: Any) -> bool:
    estimator = getattr(args, "advantage_estimator", "grpo")
    return estimator in GROUP_SCALE and bool(getattr(args, "grpo_std_normalization", True))


def _places(samples: Sequence[Any]) -> dict[Hashable, list[int]]:
    """Places of the samples of each group; without a group index all belong to one."""
    places: dict[Hashable, list[int]] = {}
    for place, sample in enumerate(samples):
        places.setdefault(sample.group_index, []).append(place)
    return places


def _rollouts(samples: Sequence[Any]) -> list[list[int]]:
    """Places of the samples of each rollout, in order of first appearance."""
    found: dict[Hashable, list[int]] = {}
    for place, sample in enumerate(samples):
        name: Hashable = ("rollout", sample.rollout_id)
        if sample.rollout_id is None:
            name = ("index", sample.index) if sample.index is not None else ("place", place)
        found.setdefault(name, []).append(place)
    return list(found.values())


def _rollout_samples(samples: Sequence[Any]) -> list[list[Any]]:
    return [[samples[place] for place in places] for places in _rollouts(samples)]


def _flat(samples: Iterable[Any]) -> Iterable[Any]:
    for sample in samples:
        if isinstance(sample, list):
            yield from _flat(sample)
        else:
            yield sample


def _main_cause(members: Sequence[Any]) -> str:
    causes = Counter(
        facts["boundary"] or facts["ending"]
        for sample in members
        if (facts := (sample.metadata or {}).get(FACTS)) is not None and facts["score"] is None
    )
    return str(causes.most_common(1)[0][0]) if causes else "unknown"


def _keyed(args: Any, score: float | None) -> Any:
    key = getattr(args, "reward_key", None)
    return {key: score} if key and score is not None else score


def _number(score: float | None) -> float:
    return np.nan if score is None else score

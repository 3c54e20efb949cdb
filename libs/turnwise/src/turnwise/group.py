"""Groups: the rollouts of one prompt, compared with each other.

Statistics are taken over distinct rollouts, never over segments, and over scored members only:
a lost or cancelled episode carries no score and shifts nobody's baseline.

Shapes: `scores_G` is float64[G], one entry per rollout of the group, NaN where it has no score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from turnwise.episode import Episode

MIN_SCORED_FRACTION = 0.75
"""A group with fewer than ceil(0.75 G) scored members is dropped whole."""

MIN_STD = 1e-6
"""slime's `check_reward_nonzero_std` keeps a group whose sample deviation exceeds this."""

STD_EPSILON = 1e-6
"""Added to the deviation that advantages are divided by, as slime does."""


class Drop(StrEnum):
    """Why a group is not trained on; also its key in metrics."""

    TOO_FEW_SCORED = "too_few_scored"
    ZERO_STD = "zero_std"


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one prompt and, where it is trained on, their advantages.

    Attributes:
        group_id: The prompt's name within the step.
        episodes: One per rollout, in the order they were started.
        scores_G: float64[G], NaN where unscored.
        advantages_G: float64[G], NaN where unscored.
        drop: The reason the group is left out, None if it is kept.
        credits_G: float64[S] of each member with S segments, what `credit_advantages` adds to
            them; float64[0] where its episode gives no credit.
    """

    group_id: str
    episodes: tuple[Episode, ...]
    scores_G: NDArray[np.float64]
    advantages_G: NDArray[np.float64]
    drop: Drop | None
    credits_G: tuple[NDArray[np.float64], ...]

    def segment_advantages(self, member: int) -> NDArray[np.float64]:
        """float64[S], the advantage of each segment of a member."""
        whole = np.full(len(self.episodes[member].segments), self.advantages_G[member])
        credit = self.credits_G[member]
        return whole + credit if credit.size else whole


def advantages(
    scores_G: NDArray[np.float64], *, std_normalization: bool = True
) -> NDArray[np.float64]:
    """Score minus the mean of the scored members, divided by their deviation if asked.

    GRPO, equation 3 of Shao et al. 2024 (arXiv 2402.03300), with the sample deviation
    (n - 1) plus 1e-6 as slime computes it; without division it is the estimator of
    Liu et al. 2025 (arXiv 2503.20783). A single scored member has advantage 0.

    Returns:
        float64[G], NaN where `scores_G` is.
    """
    scored = scores_G[~np.isnan(scores_G)]
    if scored.size == 0:
        return np.full_like(scores_G, np.nan)
    centred: NDArray[np.float64] = scores_G - float(scored.mean())
    if not std_normalization:
        return centred
    normalised: NDArray[np.float64] = centred / (_std(scored) + STD_EPSILON)
    return normalised


def credit_advantages(
    credit_G: Sequence[Sequence[float | None]], *, std_normalization: bool = True
) -> tuple[NDArray[np.float64], ...]:
    """What a segment's credit adds to the advantage of its episode.

    The k-th segments of a group's members are compared with each other, as their scores are: each
    loses the mean of the members that have a k-th one, and is divided by their deviation if asked.
    A None is no credit: it is compared with nothing and adds 0.
    So a reward for one turn says nothing about the turns around it, whatever those earn. After the
    division credits of half the size are the same.

    Args:
        credit_G: `Episode.credit` of each member, of any lengths.

    Returns:
        float64[S] of each member, as long as its credit.
    """
    found = [np.array(credit, dtype=np.float64) for credit in credit_G]
    for place in range(max(map(len, credit_G), default=0)):
        members = [one for one in found if len(one) > place and not np.isnan(one[place])]
        at_place = np.array([credit[place] for credit in members])
        for credit, value in zip(
            members, advantages(at_place, std_normalization=std_normalization), strict=True
        ):
            credit[place] = value
    return tuple(map(np.nan_to_num, found))


def tells(credits_G: Sequence[NDArray[np.float64]]) -> bool:
    """Whether any segment's credit differs from that of its place."""
    return any(bool((np.abs(credit) > MIN_STD).any()) for credit in credits_G)


def drop_reason(scores_G: NDArray[np.float64], *, require_spread: bool = True) -> Drop | None:
    """Why a group with these scores can't be trained on; None if it can.

    Args:
        scores_G: float64[G], NaN where unscored.
        require_spread: Whether a group whose scores are all alike is dropped (dynamic sampling).
    """
    scored = scores_G[~np.isnan(scores_G)]
    if scored.size < max(1, math.ceil(MIN_SCORED_FRACTION * scores_G.size)):
        return Drop.TOO_FEW_SCORED
    if require_spread and not _std(scored) > MIN_STD:
        return Drop.ZERO_STD
    return None


def scored_by_group(
    episodes: Sequence[Episode],
    group_scores: Callable[[Sequence[Episode]], Sequence[float | None]],
) -> list[Episode]:
    """The episodes with the scores that a method gives the members of each group.

    Args:
        episodes: Of any groups, in any order, which is kept.
        group_scores: See `turnwise.method.Method`.

    Raises:
        ValueError: not one score a member, one for a member without, or none for one with a score;
            a score that is no finite number.
    """
    members: dict[str, list[int]] = {}
    for place, episode in enumerate(episodes):
        members.setdefault(episode.group_id, []).append(place)
    scored = list(episodes)
    for group_id, places in members.items():
        group = [episodes[place] for place in places]
        scores = group_scores(group)
        if len(scores) != len(group):
            raise ValueError(
                f"group {group_id}: {len(group)} members, but group_scores gave {len(scores)}"
            )
        for place, episode, score in zip(places, group, scores, strict=True):
            if (score is None) != (episode.score is None):
                raise ValueError(
                    f"group {group_id}: {episode.rollout_id} ended as {episode.ending.label} with"
                    f" score {episode.score}, but group_scores gave it {score!r}"
                )
            if score is not None:
                scored[place] = replace(episode, score=score)
    return scored


def make_groups(
    episodes: Iterable[Episode], *, std_normalization: bool = True, require_spread: bool = True
) -> list[Group]:
    """Gathers episodes by `group_id`, in order of first appearance.

    Raises:
        ValueError: if two episodes share a rollout id.
    """
    by_id: dict[str, list[Episode]] = {}
    seen: set[str] = set()
    for episode in episodes:
        if episode.rollout_id in seen:
            raise ValueError(f"two episodes have the rollout id {episode.rollout_id!r}")
        seen.add(episode.rollout_id)
        by_id.setdefault(episode.group_id, []).append(episode)
    return [
        _make_group(group_id, members, std_normalization, require_spread)
        for group_id, members in by_id.items()
    ]


def _make_group(
    group_id: str, episodes: Sequence[Episode], std_normalization: bool, require_spread: bool
) -> Group:
    scores_G = np.array(
        [math.nan if episode.score is None else episode.score for episode in episodes],
        dtype=np.float64,
    )
    credits_G = credit_advantages(
        [episode.credit for episode in episodes], std_normalization=std_normalization
    )
    return Group(
        group_id=group_id,
        episodes=tuple(episodes),
        scores_G=scores_G,
        advantages_G=advantages(scores_G, std_normalization=std_normalization),
        drop=drop_reason(scores_G, require_spread=require_spread and not tells(credits_G)),
        credits_G=credits_G,
    )


def _std(scored: NDArray[np.float64]) -> float:
    return float(scored.std(ddof=1)) if scored.size > 1 else 0.0

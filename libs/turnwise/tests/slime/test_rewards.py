"""Group statistics over distinct rollouts, as slime's hooks see them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin import contract
from turnwise.command import StopRun
from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit
from turnwise.slime import accounts, dynamic_filter, post_process_rewards, reward_func
from turnwise.slime.samples import facts, read_episode

ERRANDS = "slime_standin.errands:Errands"


def make_args(method: str = ERRANDS, **changes: Any) -> Any:
    return contract.make_args(turnwise={"method": method}, hf_checkpoint="none", **changes)


def member(
    score: float | None,
    *,
    group: int = 0,
    rollout: int | None = None,
    boundary: str = "user",
    error: str = "gone",
) -> Any:
    ending = Ending.finished()
    if score is None:
        ending = Ending.lost(BoundaryError(Boundary(boundary), error))
    episode = Episode(
        rollout_id=f"train/{rollout}",
        group_id=f"train/{group}",
        task_id="task",
        segments=(),
        ending=ending,
        score=score,
        transcript=(),
        info={"task": group},
    )
    metadata = {"turnwise": facts(episode)}
    return Sample(group_index=group, rollout_id=rollout, metadata=metadata, reward=score)


def groups(*scores: list[tuple[float | None, int]]) -> list[Any]:
    """For each group (score, segments) of its rollouts."""
    samples = []
    rollout = 0
    for number, rows in enumerate(scores):
        for score, segments in rows:
            samples += [member(score, group=number, rollout=rollout) for _ in range(segments)]
            rollout += 1
    return samples


def test_a_service_that_is_gone_ends_the_run_instead_of_sampling_for_ever() -> None:
    gone = [
        member(None, rollout=n, boundary="judge", error="no answer within 60 s") for n in range(4)
    ]
    fine = groups([(1.0, 1), (0.0, 1)])
    args = make_args(rollout_batch_size=10)
    for _ in range(19):
        assert dynamic_filter(args, gone).reason == "too_few_scored_judge"
    assert dynamic_filter(args, fine).keep
    for _ in range(19):
        dynamic_filter(args, gone)
    with pytest.raises(StopRun, match="20 groups in a row .* judge: no answer within 60 s"):
        dynamic_filter(args, gone)


def test_a_rollout_counts_once_however_many_segments_it_has() -> None:
    few = groups([(1.0, 1), (0.0, 1)])
    many = groups([(1.0, 5), (0.0, 1)])
    raw, rewards = post_process_rewards(make_args(), many)
    _, plain = post_process_rewards(make_args(), few)
    assert raw == [1.0] * 5 + [0.0]
    assert rewards == pytest.approx([plain[0]] * 5 + [plain[1]])


def test_groups_of_unequal_size_are_normalised_each_for_itself() -> None:
    samples = groups([(1.0, 1), (0.0, 2), (0.0, 1)], [(0.5, 3), (0.25, 1)])
    _, rewards = post_process_rewards(make_args(grpo_std_normalization=False), samples)
    third = 1 / 3
    assert rewards == pytest.approx([2 * third, -third, -third, -third, *[0.125] * 3, -0.125])


def test_a_lost_member_shifts_nobody_and_gets_nothing() -> None:
    raw, rewards = post_process_rewards(
        make_args(), groups([(1.0, 1), (None, 1), (0.0, 1), (1.0, 1)])
    )
    _, without = post_process_rewards(make_args(), groups([(1.0, 1), (0.0, 1), (1.0, 1)]))
    assert rewards[1] == 0.0
    assert [rewards[0], rewards[2], rewards[3]] == pytest.approx(without)
    assert raw[1] == pytest.approx(2 / 3)


def test_a_wholly_lost_group_takes_the_mean_of_the_step_and_no_advantage() -> None:
    raw, rewards = post_process_rewards(make_args(), groups([(None, 1)], [(1.0, 1), (0.0, 1)]))
    assert (raw[0], rewards[0]) == (0.5, 0.0)


def test_a_step_without_any_score_is_an_error() -> None:
    with pytest.raises(ValueError, match="none of 2 samples has a score"):
        post_process_rewards(make_args(), groups([(None, 1), (None, 1)]))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [2**-0.5, -(2**-0.5)]),
        ({"grpo_std_normalization": False}, [0.5, -0.5]),
        ({"advantage_estimator": "reinforce_plus_plus_baseline"}, [0.5, -0.5]),
        ({"advantage_estimator": "ppo"}, [1.0, 0.0]),
        ({"rewards_normalization": False}, [1.0, 0.0]),
    ],
)
def test_normalisation_follows_slimes_switches(
    changes: dict[str, Any], expected: list[float]
) -> None:
    _, rewards = post_process_rewards(make_args(**changes), groups([(1.0, 1), (0.0, 1)]))
    assert rewards == pytest.approx(expected, abs=1e-5)


SCORES = st.none() | st.floats(0, 1, width=32)
ROWS = st.lists(st.tuples(SCORES, st.integers(1, 3)), min_size=1, max_size=6)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_rewards_of_any_step_are_finite_and_centred(rows: list[Any]) -> None:
    samples = groups(*rows)
    scored = [score for group in rows for score, _ in group if score is not None]
    if not scored:
        return
    raw, rewards = post_process_rewards(make_args(), samples)
    assert len(raw) == len(rewards) == len(samples)
    assert np.isfinite(raw).all() and np.isfinite(rewards).all()
    at = 0
    for group in rows:
        total = 0.0
        for score, segments in group:
            same = rewards[at : at + segments]
            assert len(set(same)) == 1 and len(set(raw[at : at + segments])) == 1
            if score is None:
                assert same[0] == 0.0
            total += same[0]
            at += segments
        assert abs(total) < 1e-3


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=8))
def test_single_sample_groups_get_what_slime_computes(scores: list[float]) -> None:
    _, rewards = post_process_rewards(make_args(), groups([(score, 1) for score in scores]))
    array = np.array(scores)
    expected = (array - array.mean()) / (array.std(ddof=1) + 1e-6)
    assert rewards == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("rows", "keep", "reason"),
    [
        ([1.0, 0.0, 0.0, 1.0], True, None),
        ([1.0, 1.0, 1.0, 1.0], False, "zero_std_1.0"),
        ([0.0, 0.0, 0.0, None], False, "zero_std_0.0"),
        ([1.0, 0.0, 1.0, None], True, None),
        ([1.0, 0.0, None, None], False, "too_few_scored_user"),
        ([None] * 4, False, "too_few_scored_user"),
    ],
)
def test_a_group_that_teaches_nothing_is_dropped_with_its_reason(
    rows: list[float | None], keep: bool, reason: str | None
) -> None:
    verdict = dynamic_filter(make_args(), [member(one, rollout=n) for n, one in enumerate(rows)])
    assert (verdict.keep, verdict.reason) == (keep, reason)


def test_the_filter_names_the_boundary_that_lost_most_and_counts_rollouts() -> None:
    group: list[Any] = [
        [member(1.0, rollout=0), member(1.0, rollout=0)],
        member(None, rollout=1, boundary="engine"),
        member(None, rollout=2, boundary="user"),
        member(None, rollout=3, boundary="engine"),
    ]
    assert dynamic_filter(make_args(), group).reason == "too_few_scored_engine"


async def test_the_reward_hook_takes_one_sample_and_a_list() -> None:
    one, lost = member(0.5), member(None)
    assert await reward_func(make_args(), one) == 0.5
    assert await reward_func(make_args(), lost) is None
    assert await reward_func(make_args(), [one, lost, [one]]) == [0.5, None, 0.5]
    keyed = make_args(reward_key="score")
    assert await reward_func(keyed, [one, lost]) == [{"score": 0.5}, None]


def test_samples_of_other_origin_count_by_their_reward() -> None:
    samples = [Sample(index=n, reward=reward) for n, reward in enumerate((0.5, 1.5))]
    raw, rewards = post_process_rewards(SimpleNamespace(), samples)
    assert raw == [0.5, 1.5]
    assert rewards == pytest.approx([-(2**-0.5), 2**-0.5], abs=1e-5)


COMPARED = "slime_standin.errands:Compared"


def test_a_method_scores_a_group_once_and_before_any_statistics() -> None:
    args = make_args(COMPARED)
    group = [member(score, rollout=n) for n, score in enumerate((0.5, 0.9, None, 0.1))]
    assert dynamic_filter(args, group).keep
    assert [one.reward for one in group] == [1.0, 2.0, None, 0.0]
    raw, rewards = post_process_rewards(args, group)
    assert raw == [1.0, 2.0, 1.0, 0.0] and rewards[2] == 0.0
    again, _ = post_process_rewards(args, group)
    assert again == raw
    assert group[0].metadata["turnwise"]["own_score"] == 0.5


def test_without_a_filter_the_post_processing_scores_the_groups() -> None:
    args = make_args(COMPARED)
    samples = groups([(0.2, 2), (0.4, 1)], [(0.9, 1), (0.9, 1)])
    raw, rewards = post_process_rewards(args, samples)
    assert raw == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert rewards[0] == rewards[1] < 0 < rewards[2] and rewards[3:] == [0.0, 0.0]


def test_a_group_whose_members_tie_by_its_scores_is_dropped() -> None:
    members = [member(score, rollout=n) for n, score in enumerate((0.5, 0.5))]
    assert dynamic_filter(make_args(COMPARED), members).reason == "zero_std_0.0"


def test_a_score_that_a_group_gives_to_a_lost_member_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slime_standin.errands.Compared.group_scores", lambda self, all: [1.0, 1.0])
    with pytest.raises(ValueError, match="ended as lost:user"):
        dynamic_filter(make_args(COMPARED), [member(1.0, rollout=0), member(None, rollout=1)])


async def test_the_accounts_hold_the_score_that_the_group_gave() -> None:
    async with accounts.TRAIN.account("train/0") as rollout_id:
        sample = member(0.5, rollout=0)
        sample.metadata["turnwise"]["rollout_id"] = rollout_id
        accounts.TRAIN.settle(read_episode(sample.metadata["turnwise"]))
    dynamic_filter(make_args(COMPARED), [sample, member(0.1, rollout=1)])
    assert [one.score for one in accounts.TRAIN.take().ended] == [1.0]


@given(
    st.sampled_from(
        [
            Ending.finished(),
            Ending.cancelled(),
            *(Ending.stopped(limit) for limit in Limit),
            *(Ending.lost(BoundaryError(boundary, "why")) for boundary in Boundary),
        ]
    )
)
def test_an_episode_survives_in_the_metadata(ending: Ending) -> None:
    episode = Episode(
        rollout_id="train/3#1",
        group_id="train/0",
        task_id="task",
        segments=(),
        ending=ending,
        score=0.5 if ending.by_policy else None,
        transcript=(),
        metrics={"turns": 3.0},
        info={"parts": [1, {"a": None}]},
        wall_s=1.5,
    )
    assert read_episode(json.loads(json.dumps(facts(episode)))) == episode

"""Group statistics over distinct rollouts, as slime's hooks see them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import make_args
from turnwise.command import StopRun
from turnwise.slime import dynamic_filter, post_process_rewards, reward_func


def member(
    score: float | None, *, group: int = 0, rollout: int | None = None, boundary: str = "user"
) -> Any:
    facts = {
        "score": score,
        "boundary": None if score is not None else boundary,
        "ending": "finished" if score is not None else f"lost:{boundary}",
    }
    return Sample(group_index=group, rollout_id=rollout, metadata={"turnwise": facts})


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
    gone = [member(None, rollout=n, boundary="judge") for n in range(4)]
    gone[0].metadata["turnwise"]["error"] = "no answer within 60 s"
    for one in gone[1:]:
        one.metadata["turnwise"]["error"] = None
    fine = groups([(1.0, 1), (0.0, 1)])
    args = make_args(rollout_batch_size=10)
    for _ in range(19):
        assert dynamic_filter(args, gone).reason == "too_few_scored_judge"
    assert dynamic_filter(args, fine).keep
    for _ in range(19):
        dynamic_filter(args, gone)
    with pytest.raises(StopRun, match="20 groups in a row .* to judge: no answer within 60 s"):
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

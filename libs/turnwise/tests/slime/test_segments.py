"""Episodes of several segments, and endings without a score, as slime's samples."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from slime.observability import logging_utils  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    generate_and_rm_group,
)
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import to_train_data
from slime_standin.errands import GOODBYE, Courier, spoken
from slime_standin.errands import rows as errands
from turnwise.config import ConfigError
from turnwise.group import credit_advantages
from turnwise.slime import accounts, dynamic_filter, generate, post_process_rewards, rollout_log
from turnwise.testing.servers import Call, FakeSGLang, Turn, status

PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 1024}
TWO = {"method": "slime_standin.methods:TwoSegments"}


def rows(*numbers: int, group: int = 0) -> list[Any]:
    return [Sample(prompt=str(n), index=n, group_index=group) for n in numbers]


@pytest.fixture
def courier() -> Courier:
    """One that says goodbye whatever it is asked."""
    return Courier(wrong=lambda number: True)


async def test_segments_share_rollout_id_and_score_and_count_once(
    args: Callable[..., Any],
) -> None:
    arguments = args(turnwise=TWO)
    group = await generate_and_rm_group(arguments, rows(3, 5, 7), PARAMS)
    assert [[one.rollout_id for one in member] for member in group] == [[3, 3], [5, 5], [7, 7]]
    assert [[one.reward for one in member] for member in group] == [[s, s] for s in (0.3, 0.5, 0.7)]
    assert all(one.index == member[0].index for member in group for one in member)
    data = to_train_data(arguments, [group])
    by_rollout = [data["rewards"][at] for at in (0, 2, 4)]
    assert data["rewards"][1::2] == by_rollout
    assert by_rollout == pytest.approx([-1.0, 0.0, 1.0], abs=1e-4)
    first, second = group[0]
    assert first.tokens != second.tokens
    assert first.metadata is not second.metadata
    assert hasattr(first, "trace") and not hasattr(second, "trace")
    assert len(first.weight_versions) == len(second.weight_versions) == 1


async def test_credit_of_a_segment_is_in_its_own_sample_as_on_the_local_backend(
    args: Callable[..., Any],
) -> None:
    arguments = args(turnwise={"method": "slime_standin.methods:Credited"})
    group = await generate_and_rm_group(arguments, rows(3, 5, 7), PARAMS)
    assert dynamic_filter(arguments, group).keep
    data = to_train_data(arguments, [group])
    credit = credit_advantages([(None, 3.0), (None, 5.0), (None, 7.0)])
    assert data["rewards"] == pytest.approx(np.concatenate(credit).tolist())
    flat = [one for member in reversed(group) for one in reversed(member)]
    _, turned = post_process_rewards(arguments, flat)
    assert turned == pytest.approx(data["rewards"][::-1])
    plain = args(turnwise=arguments.turnwise, rewards_normalization=False)
    assert post_process_rewards(plain, flat)[1] == [8.0, 1.0, 6.0, 1.0, 4.0, 1.0]
    for one in flat[::2]:
        one.metadata["turnwise_credit"][1] = 0.5
    assert not any("turnwise_credit" in one.metadata for one in flat[1::2])
    assert dynamic_filter(arguments, group).reason == "zero_std_1.0"


async def test_segments_of_a_sample_without_an_index_are_refused(args: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="no index to share"):
        await generate(args(turnwise=TWO), Sample(prompt="3"), PARAMS)


async def test_a_method_that_fans_out_gives_lists_and_one_that_does_not_gives_samples(
    args: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = {"on_rewrite": "fork"}
    (alone,) = await generate(args(turnwise=forks), errands(1)[0], PARAMS)
    assert alone.status is Sample.Status.COMPLETED
    monkeypatch.setattr("slime_standin.methods.TwoSegments.fans_out", False)
    with pytest.raises(ConfigError, match="made 2 segments of one episode, but its fans_out"):
        await generate(args(turnwise={**TWO, "objective": "turn-mean"}), rows(1)[0], PARAMS)


async def test_a_group_reward_and_several_segments_do_not_go_together(
    args: Callable[..., Any],
) -> None:
    await generate(args(turnwise=TWO), rows(1)[0], PARAMS)
    with pytest.raises(ConfigError, match="--group-rm writes a reward into a single sample"):
        await generate(args(turnwise=TWO, group_rm=True), rows(1)[0], PARAMS)


async def test_a_mistake_in_a_method_loses_its_episode_alone(
    args: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    arguments = args(turnwise={"method": "slime_standin.methods:Broken"})
    group = await generate_and_rm_group(arguments, rows(2, 3, 4), PARAMS)
    (lost,) = group[1]
    assert [one.reward for one in (group[0][0], lost, group[2][0])] == [0.2, None, 0.4]
    assert lost.status is Sample.Status.ABORTED and lost.remove_sample
    assert lost.metadata["turnwise"]["ending"] == "lost:environment"
    assert "KeyError: 'a mistake'" in lost.metadata["turnwise"]["error"]
    assert "a mistake" in caplog.text
    data = to_train_data(arguments, [group])
    assert data["rewards"][2] == 0.0 and sum(data["loss_masks"][2]) == 0
    assert data["raw_reward"][2] == pytest.approx(0.3)


async def test_a_wrong_row_is_a_configuration_error_not_a_lost_episode(
    args: Callable[..., Any],
) -> None:
    with pytest.raises(ConfigError, match="the row of sample 0: .* 0 to 499, found '500'"):
        await generate(args(), Sample(prompt="500", index=0), PARAMS)
    assert accounts.TRAIN.take().started == 0


@pytest.mark.parametrize("key", [None, "score"])
@pytest.mark.parametrize("evaluation", [False, True])
async def test_a_lost_episode_has_no_reward_and_trains_nothing(
    args: Callable[..., Any], server: FakeSGLang, key: str | None, evaluation: bool
) -> None:
    server.misbehave = lambda call: status(400)
    sample = await generate(args(reward_key=key), errands(1)[0], PARAMS, evaluation=evaluation)
    assert sample.status is Sample.Status.ABORTED and sample.remove_sample
    # slime looks the key up in every evaluated sample.
    assert sample.reward == ({"score": None} if key and evaluation else None)
    assert sample.metadata["turnwise"]["boundary"] == "engine"
    assert sample.loss_mask == [0] and len(sample.tokens) == 2
    json.dumps(sample.metadata)


async def test_a_lost_placeholder_fits_top_p_and_routing_replay(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    server.misbehave = lambda call: status(400) if call.number == 0 else None
    server.more_meta = lambda call, turn: {
        "top_p_token_ids": list(turn.ids),
        "top_p_token_offsets": list(range(len(turn.ids) + 1)),
        "routed_experts": [0] * (len(call.body["input_ids"]) + len(turn.ids) - 1) * 4,
    }
    arguments = args(
        rollout_top_p=0.9, use_rollout_routing_replay=True, num_layers=2, moe_router_topk=2
    )
    group = errands(2)
    for number, sample in enumerate(group):
        sample.index, sample.group_index = number, 0
    group = [await generate(arguments, sample, PARAMS) for sample in group]
    assert [sample.remove_sample for sample in group] == [True, False]
    to_train_data(arguments, [group])


@pytest.mark.parametrize(
    ("answer", "options", "ending", "name"),
    [
        ("length", {}, "stopped:tokens", "TRUNCATED"),
        ("garbage", {"max_turns": 2}, "stopped:turns", "TRUNCATED"),
        ("garbage", {"max_format_errors": 2}, "stopped:format", "COMPLETED"),
    ],
)
async def test_a_policy_that_runs_into_a_limit_keeps_its_score(
    args: Callable[..., Any],
    server: FakeSGLang,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    options: dict[str, Any],
    ending: str,
    name: str,
) -> None:
    texts = {
        "length": "and on and on",
        "garbage": "<tool_call>\n{\n</tool_call>",
    }

    async def say(call: Call) -> Turn:
        return spoken(texts[answer], stop=answer != "length")

    monkeypatch.setattr(server, "_answer", say)
    params = {**PARAMS, "max_new_tokens": 13} if answer == "length" else PARAMS
    sample = await generate(args(turnwise=options), errands(1)[0], params)
    assert sample.metadata["turnwise"]["ending"] == ending
    assert sample.status is Sample.Status[name]
    assert sample.reward == 0.0 and not sample.remove_sample
    assert sum(sample.loss_mask) > 0


async def test_a_prompt_beyond_the_context_scores_but_has_nothing_to_train(
    args: Callable[..., Any],
) -> None:
    sample = await generate(args(rollout_max_context_len=64), errands(1)[0], PARAMS)
    assert sample.metadata["turnwise"]["ending"] == "stopped:context"
    assert sample.status is Sample.Status.TRUNCATED and sample.reward == 0.0
    assert sample.remove_sample and sample.loss_mask == [0]


async def test_a_cancelled_task_is_accounted_for(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    server.delay_s = 30.0
    work = asyncio.create_task(generate(args(), errands(1)[0], PARAMS))
    while not server.running:
        await asyncio.sleep(0.001)
    assert accounts.TRAIN.in_flight == 1
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    period = accounts.TRAIN.take()
    period.check()
    assert period.ledger.as_dict()["cancelled"] == 1 and period.in_flight == 0


async def test_a_rollout_under_way_is_carried_to_the_next_period(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    server.delay_s = 0.2
    arguments = args()
    work = asyncio.create_task(generate(arguments, errands(1)[0], PARAMS))
    while not server.running:
        await asyncio.sleep(0.001)
    watching = accounts.TRAIN._lag
    assert watching is not None
    watching._lags_s.append(5.0)
    assert rollout_log(0, arguments, [], {}, 1.0) is True
    sample = await work
    assert sample.response.startswith(GOODBYE)
    assert rollout_log(1, arguments, [sample], {}, 1.0) is True
    first, second = logging_utils.logged
    assert (first["rollout/turnwise/started"], first["rollout/turnwise/in_flight"]) == (1, 1)
    assert (second["rollout/turnwise/started"], second["rollout/turnwise/finished"]) == (0, 1)
    # A lag is told in the period that it was in, while rollouts go on from one to the next.
    lags = [logged["rollout/turnwise/loop_lag_max_s"] for logged in (first, second)]
    assert lags[0] == 5.0 and lags[1] < 5.0

"""An agent behind the gateway in slime's rollout: the hooks are the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    generate_and_rm_group,
)
from slime_standin.contract import to_train_data
from slime_standin.errands import Courier, rows
from slime_standin.through import Through
from turnwise.config import ConfigError
from turnwise.gateway.server import own_address
from turnwise.slime import accounts, generate
from turnwise.testing.servers import FakeSGLang, status

THROUGH = {"method": "slime_standin.through:Through"}
PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 1024}


@pytest.fixture
def courier() -> Courier:
    return Courier(asks=1)


async def test_what_the_server_sampled_is_trained_with_its_log_probs_and_shares_a_rollout(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    sampled: list[tuple[int, float]] = []
    server.more_meta = lambda call, turn: (
        sampled.extend(zip(turn.ids, turn.logprobs, strict=True)) or {}  # type: ignore[func-returns-value]
    )
    row = rows(2)[1]
    row.index = 1
    samples = await generate(args(turnwise=THROUGH), row, dict(PARAMS))
    assert len(samples) == 2, "the title and the errand"
    trained = [
        (token, logprob)
        for one in samples
        for token, logprob, mask in zip(
            one.tokens[-one.response_length :], one.rollout_log_probs, one.loss_mask, strict=True
        )
        if mask
    ]
    assert trained == sampled and len({one.rollout_id for one in samples}) == 1
    assert [one.reward for one in samples] == [1.0, 1.0]
    facts = samples[0].metadata["turnwise"]
    assert facts["ending"] == "finished" and facts["metrics"]["forks"] == 0


async def test_a_group_counts_each_rollout_once_and_a_lost_one_has_no_reward(
    args: Callable[..., Any], server: FakeSGLang, courier: Courier
) -> None:
    courier._wrong = lambda number: number == 0
    dead: list[str] = []

    def misbehave(call: Any) -> Any:
        if not dead and call.turn == 1 and call.session != courier.sessions[0]:
            dead.append(call.session)
        return status(400) if call.session in dead else None

    server.misbehave = misbehave
    members = rows(4)
    for place, one in enumerate(members):
        one.index, one.group_index, one.session_id = place, 0, f"s{place}"
    arguments = args(turnwise=THROUGH)
    group = await generate_and_rm_group(arguments, members, PARAMS)
    rewards = [member[0].reward for member in group]
    assert sorted(map(str, rewards)) == ["0.0", "1.0", "1.0", "None"]
    data = to_train_data(arguments, [group])
    assert len(data["rewards"]) == sum(map(len, group))
    period = accounts.TRAIN.take()
    period.check()
    assert "3 finished" in period.equation() and "1 lost" in period.equation()


async def test_partial_rollout_is_refused_with_its_reason(args: Callable[..., Any]) -> None:
    arguments = args(turnwise=THROUGH, partial_rollout=True)
    with pytest.raises(ConfigError, match="--partial-rollout keeps unfinished groups"):
        await generate(arguments, rows(1)[0], dict(PARAMS))


async def test_agents_elsewhere_reach_a_gateway_that_listens_for_them(
    args: Callable[..., Any],
) -> None:
    Through.urls.clear()
    for options in ({}, {"gateway_host": "0.0.0.0"}):
        await generate(args(turnwise={**THROUGH, **options}), rows(1)[0], dict(PARAMS))
    here, everywhere = Through.urls
    assert here.startswith("http://127.0.0.1:")
    assert everywhere.startswith(f"http://{own_address()}:")


async def test_an_abort_of_slimes_cancels_the_rollout(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    server.slow = lambda call: 3600.0
    playing = asyncio.create_task(generate(args(turnwise=THROUGH), rows(1)[0], dict(PARAMS)))
    while not server.running:
        await asyncio.sleep(0.01)
    server._abort.set()
    (sample,) = await playing
    assert sample.status is type(sample).Status.ABORTED and sample.remove_sample
    assert sample.metadata["turnwise"]["ending"] == "cancelled"

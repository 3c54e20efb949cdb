"""Engines and users that misbehave in every way we could think of, through slime's hooks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from slime_standin.eight import EPISODES, VICTIM, Eight, Outcome, check, play
from slime_standin.errands import Courier, opening, rows, says
from turnwise.testing.faults import BESIDE_FAULTS, ENGINE_FAULTS, Fault, chat_faults

USER_FAULTS = chat_faults("lost:user")
ERRANDS = Eight(
    options=lambda url, deadline_s: {
        "method": "slime_standin.errands:Errands",
        "user_url": url,
        "user_deadline_s": deadline_s,
        "engine_deadline_s": deadline_s,
    },
    rows=lambda: rows(EPISODES),
    policy=lambda: Courier(asks=1).answer,
    says=says,
    victims=lambda call: call.body["messages"][0]["content"] == opening(VICTIM),
)


@pytest.fixture(scope="module")
def undisturbed(checkpoint: str) -> Outcome:
    """The same episodes without a fault."""
    with pytest.MonkeyPatch.context() as patch:
        outcome = asyncio.run(play(ERRANDS, checkpoint, patch))
    assert [sample.reward for (sample,) in outcome.episodes] == [1.0] * EPISODES
    return outcome


def test_there_are_forty_kinds_and_more() -> None:
    names = [f"engine {fault.name}" for fault in ENGINE_FAULTS]
    names += [f"beside {fault.name}" for fault in BESIDE_FAULTS]
    names += [f"user {fault.name}" for fault in USER_FAULTS]
    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize("fault", ENGINE_FAULTS, ids=lambda fault: fault.name)
async def test_an_engine_fault_costs_its_episode_at_most(
    fault: Fault, checkpoint: str, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(fault, await play(ERRANDS, checkpoint, monkeypatch, engine=fault), undisturbed)


@pytest.mark.parametrize("fault", BESIDE_FAULTS, ids=lambda fault: fault.name)
async def test_what_does_not_fit_the_tokens_costs_its_episode_at_most(
    fault: Fault, checkpoint: str, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "moe_router_topk": 2}
    check(fault, await play(ERRANDS, checkpoint, monkeypatch, engine=fault, **sizes), undisturbed)


@pytest.mark.parametrize("fault", USER_FAULTS, ids=lambda fault: fault.name)
async def test_a_users_fault_costs_its_episode_at_most(
    fault: Fault, checkpoint: str, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(fault, await play(ERRANDS, checkpoint, monkeypatch, service=fault), undisturbed)

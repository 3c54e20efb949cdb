"""The faults that slime's hooks are tried with, over this method: of eight episodes one meets the
fault, and it alone is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from slime_standin.eight import Outcome, check, play
from turnwise.testing.faults import BESIDE_FAULTS, ENGINE_FAULTS, Fault

from apps.trainers.memagent.tests.faults.eight import MEMAGENT, SECTIONS


@pytest.fixture(scope="module")
def undisturbed(checkpoint: str) -> Outcome:
    """The same episodes without a fault."""
    with pytest.MonkeyPatch.context() as patch:
        outcome = asyncio.run(play(MEMAGENT, checkpoint, patch))
    right = [[1.0] * (SECTIONS + 1)] * 8
    assert [[sample.reward for sample in made] for made in outcome.episodes] == right
    return outcome


def test_every_turn_is_a_sample_and_all_of_an_episode_share_a_rollout(
    undisturbed: Outcome,
) -> None:
    for number, samples in enumerate(undisturbed.episodes):
        assert [sample.rollout_id for sample in samples] == [number] * (SECTIONS + 1)
        assert all(sum(sample.loss_mask) == sample.response_length for sample in samples)


@pytest.mark.parametrize("fault", ENGINE_FAULTS, ids=lambda fault: fault.name)
async def test_an_engine_fault_costs_its_episode_at_most(
    fault: Fault, checkpoint: str, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(fault, await play(MEMAGENT, checkpoint, monkeypatch, engine=fault), undisturbed)


@pytest.mark.parametrize("fault", BESIDE_FAULTS, ids=lambda fault: fault.name)
async def test_what_does_not_fit_the_tokens_costs_its_episode_at_most(
    fault: Fault, checkpoint: str, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "moe_router_topk": 2}
    check(fault, await play(MEMAGENT, checkpoint, monkeypatch, engine=fault, **sizes), undisturbed)

"""The faults that slime's hooks are tried with, over this method: of eight episodes one meets the
fault, and it alone is lost, at the boundary where it happened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from slime_standin.eight import EPISODES, Outcome, check, play
from turnwise.testing.faults import BESIDE_FAULTS, DONE, ENGINE, ENGINE_FAULTS, Fault, content
from turnwise.testing.servers import (
    body,
    cut,
    disconnect,
    hang,
    hang_in_body,
    status,
)

from apps.trainers.toolorchestra.tests.faults.eight import TOOLORCHESTRA

SHORT_S = 1.5


def lost(name: str, what: Any, **options: Any) -> Fault:
    return Fault(name=name, what=what, ends=ENGINE, deadline_s=SHORT_S, **options)


def survived(name: str, what: Any, **options: Any) -> Fault:
    return Fault(name=name, what=what, ends=DONE, **{"times": 1, **options})


# The victim's requests: 0 reasoner, 1 answer.
EXPERT_FAULTS = [
    *(survived(f"429 once at {turn}", lambda: status(429), turn=turn) for turn in range(2)),
    *(lost(f"401 at {turn}", lambda: status(401, "no key"), turn=turn) for turn in range(2)),
    survived("429 with Retry-After", lambda: status(429, Retry_After="0")),
    survived("500 once", lambda: status(500)),
    survived("disconnects once", disconnect),
    survived("cut once", cut),
    lost("500 for ever", lambda: status(500), error="HTTP 500"),
    lost("400", lambda: status(400, "odd"), error="odd"),
    lost("404", lambda: status(404), error="HTTP 404"),
    lost("disconnects for ever", disconnect),
    lost("resets for ever", lambda: disconnect(reset=True)),
    lost("cut for ever", cut),
    lost("no headers", hang, error="deadline"),
    lost("no body", hang_in_body, error="deadline"),
    lost("HTML", lambda: body(b"<html>", "text/html")),
    lost("half a JSON", lambda: body(b'{"choices": [')),
    lost("empty body", lambda: body(b"")),
    lost("no choices", lambda: body(b'{"choices": []}')),
    lost("an error object", lambda: body(b'{"error": {}}')),
    lost("null content", lambda: content(None)),
    lost("empty content", lambda: content("")),
    lost("content as parts", lambda: content([{"type": "text"}])),
    survived("special tokens", lambda: content("It is 98<|im_end|>"), turn=0),
    survived("control characters", lambda: content("98\x00"), turn=1),
]


@pytest.fixture(scope="module")
def undisturbed(checkpoint: str) -> Outcome:
    """The same episodes without a fault."""
    with pytest.MonkeyPatch.context() as patch:
        outcome = asyncio.run(play(TOOLORCHESTRA, checkpoint, patch))
    assert [[sample.reward for sample in made] for made in outcome.episodes] == [[1.0]] * 8
    return outcome


def test_there_are_forty_kinds_and_more() -> None:
    faults = [*ENGINE_FAULTS, *BESIDE_FAULTS, *EXPERT_FAULTS]
    assert len(faults) >= 40
    assert len({fault.name for fault in EXPERT_FAULTS}) == len(EXPERT_FAULTS)


def test_an_episode_is_one_segment_while_its_history_fits(undisturbed: Outcome) -> None:
    for number, samples in enumerate(undisturbed.episodes):
        assert [sample.rollout_id for sample in samples] == [number]
    # One reward a rollout: all are right, so that nobody stands out.
    assert undisturbed.data["rewards"] == [0.0] * 8
    assert len(undisturbed.asked) == 1 + EPISODES * 2
    assert not any("<|im_" in str(call.body["messages"]) for call in undisturbed.asked)


@pytest.mark.parametrize("fault", ENGINE_FAULTS, ids=lambda fault: fault.name)
async def test_an_engine_fault_costs_its_episode_at_most(
    fault: Fault, checkpoint: str, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(fault, await play(TOOLORCHESTRA, checkpoint, monkeypatch, engine=fault), undisturbed)


@pytest.mark.parametrize("fault", BESIDE_FAULTS, ids=lambda fault: fault.name)
async def test_what_does_not_fit_the_tokens_costs_its_episode_at_most(
    fault: Fault, checkpoint: str, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "moe_router_topk": 2}
    check(
        fault,
        await play(TOOLORCHESTRA, checkpoint, monkeypatch, engine=fault, **sizes),
        undisturbed,
    )


@pytest.mark.parametrize("fault", EXPERT_FAULTS, ids=lambda fault: fault.name)
async def test_an_expert_s_fault_costs_its_episode_at_most(
    fault: Fault, checkpoint: str, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(fault, await play(TOOLORCHESTRA, checkpoint, monkeypatch, service=fault), undisturbed)

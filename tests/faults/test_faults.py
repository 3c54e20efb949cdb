"""Engines and customers that misbehave in every way we could think of.

Eight episodes run at once through the hooks; one of them meets the fault. Afterwards:
1. the victim has ended as the table says, and without a score it has no reward and trains nothing;
2. the seven others have the tokens, log-probs and rewards of an undisturbed run;
3. the ledger balances, and the tracker got the same counts;
4. no task, socket or file is left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from turnwise.testing.servers import (
    Misbehaviour,
    body,
    cut,
    disconnect,
    edit,
    hang,
    hang_in_body,
    status,
)

from .counter import EPISODES, VICTIM, Fault, Outcome, play

ENGINE, USER, DONE = "lost:engine", "lost:user", "finished"
SHORT_S = 1.0


def meta(name: str, value: Any) -> Misbehaviour:
    """The engine's answer with another `meta_info` entry; `...` takes it out."""

    def change(answer: dict[str, Any]) -> None:
        if value is ...:
            del answer["meta_info"][name]
        else:
            answer["meta_info"][name] = value

    return edit(change)


def entry(value: Any) -> Misbehaviour:
    """The engine's answer with another second token."""
    return edit(lambda answer: answer["meta_info"]["output_token_logprobs"].__setitem__(1, value))


def unfinished(count: int) -> Misbehaviour:
    """The first tokens of the right turn, given back by an abort."""

    def change(answer: dict[str, Any]) -> None:
        found = answer["meta_info"]
        found["output_token_logprobs"] = found["output_token_logprobs"][:count]
        found["completion_tokens"] = count
        found["finish_reason"] = {"type": "abort", "message": "aborted"}

    return edit(change)


def top_p(offsets: list[int], ids: Sequence[int] = (7,)) -> Misbehaviour:
    """The engine's answer with these top-p spans."""
    return edit(
        lambda answer: answer["meta_info"].update(
            top_p_token_ids=list(ids), top_p_token_offsets=offsets
        )
    )


def content(value: Any) -> Misbehaviour:
    """The customer's answer with other words."""
    return edit(lambda answer: answer["choices"][0]["message"].__setitem__("content", value))


ENGINE_FAULTS = [
    Fault(name="503 once", what=lambda: status(503), times=1, ends=DONE),
    Fault(name="503 three times", what=lambda: status(503), times=3, ends=DONE),
    Fault(name="503 for ever", what=lambda: status(503), ends=ENGINE, error="HTTP 503"),
    Fault(name="503 at the first turn", what=lambda: status(503), turn=0, ends=ENGINE),
    Fault(name="500 once", what=lambda: status(500, "boom"), times=1, ends=DONE),
    Fault(name="500 for ever", what=lambda: status(500, "boom"), ends=ENGINE, error="boom"),
    Fault(name="502 once", what=lambda: status(502), times=1, ends=DONE),
    Fault(name="504 for ever", what=lambda: status(504), ends=ENGINE, error="HTTP 504"),
    Fault(name="408 once", what=lambda: status(408), times=1, ends=DONE),
    Fault(name="429 once", what=lambda: status(429, Retry_After="0"), times=1, ends=DONE),
    Fault(name="429, back in an hour", what=lambda: status(429, Retry_After="3600"), ends=ENGINE),
    Fault(name="400", what=lambda: status(400, "too long"), ends=ENGINE, error="too long"),
    Fault(name="401", what=lambda: status(401), ends=ENGINE, error="HTTP 401"),
    Fault(name="404", what=lambda: status(404), ends=ENGINE, error="HTTP 404"),
    Fault(name="redirect", what=lambda: status(302, Location="/"), ends=ENGINE, error="HTTP 302"),
    Fault(name="no content", what=lambda: status(204), ends=ENGINE, error="no JSON"),
    Fault(name="disconnects once", what=disconnect, times=1, ends=DONE),
    Fault(name="disconnects for ever", what=disconnect, ends=ENGINE, error="Disconnected"),
    Fault(name="resets once", what=lambda: disconnect(reset=True), times=1, ends=DONE),
    Fault(name="resets for ever", what=lambda: disconnect(reset=True), ends=ENGINE),
    Fault(name="cut once", what=cut, times=1, ends=DONE),
    Fault(name="cut for ever", what=cut, ends=ENGINE, error="Payload"),
    Fault(name="no headers", what=hang, ends=ENGINE, deadline_s=SHORT_S, error="deadline"),
    Fault(name="no body", what=hang_in_body, ends=ENGINE, deadline_s=SHORT_S, error="deadline"),
    Fault(name="HTML", what=lambda: body(b"<html>", "text/html"), ends=ENGINE, error="no JSON"),
    Fault(name="plain text", what=lambda: body(b"ok", "text/plain"), ends=ENGINE, error="no JSON"),
    Fault(name="half a JSON", what=lambda: body(b'{"meta_info": {'), ends=ENGINE, error="no JSON"),
    Fault(name="empty body", what=lambda: body(b""), ends=ENGINE, error="no JSON"),
    Fault(name="no UTF-8", what=lambda: body(b'{"a": "\xff"}'), ends=ENGINE, error="no JSON"),
    Fault(name="NaN", what=lambda: body(b'{"meta_info": NaN}'), ends=ENGINE, error="no JSON"),
    Fault(name="deep", what=lambda: body(b"[" * 200_000), ends=ENGINE, error="no JSON"),
    Fault(name="a list", what=lambda: body(b"[1]"), ends=ENGINE, error="no meta_info"),
    Fault(name="an error object", what=lambda: body(b'{"error": "x"}'), ends=ENGINE),
    Fault(name="no finish", what=lambda: meta("finish_reason", ...), ends=ENGINE),
    Fault(name="null finish", what=lambda: meta("finish_reason", None), ends=ENGINE),
    Fault(name="odd finish", what=lambda: meta("finish_reason", {"type": "tired"}), ends=ENGINE),
    Fault(
        name="failed abort",
        what=lambda: meta("finish_reason", {"type": "abort", "status_code": 500}),
        ends=ENGINE,
        error="the request failed",
    ),
    Fault(name="abort", what=lambda: unfinished(3), ends="cancelled"),
    Fault(name="abort before the first token", what=lambda: unfinished(0), ends="cancelled"),
    Fault(name="another prompt", what=lambda: meta("prompt_tokens", 7), ends=ENGINE),
    Fault(name="another count", what=lambda: meta("completion_tokens", 1), ends=ENGINE),
    Fault(name="no log-probs", what=lambda: meta("output_token_logprobs", ...), ends=ENGINE),
    Fault(name="no tokens", what=lambda: meta("output_token_logprobs", []), ends=ENGINE),
    Fault(name="null log-prob", what=lambda: entry([None, 9, None]), ends=ENGINE),
    Fault(name="positive log-prob", what=lambda: entry([0.7, 9, None]), ends=ENGINE),
    Fault(name="log-prob as text", what=lambda: entry(["-1", 9, None]), ends=ENGINE),
    Fault(name="negative id", what=lambda: entry([-1.0, -9, None]), ends=ENGINE),
    Fault(name="id as text", what=lambda: entry([-1.0, "9", None]), ends=ENGINE),
    Fault(name="id beyond the vocabulary", what=lambda: entry([-1.0, 70_000, None]), ends=ENGINE),
    Fault(name="short entry", what=lambda: entry([-1.0]), ends=ENGINE),
    Fault(
        name="more than asked for",
        what=lambda: edit(
            lambda answer: answer["meta_info"].update(
                output_token_logprobs=[[-1.0, 9, None]] * 1025, completion_tokens=1025
            )
        ),
        ends=ENGINE,
        error="1025 tokens where 1024",
    ),
    Fault(
        name="weights updated between turns",
        what=lambda: meta("weight_version", "2"),
        times=1,
        ends=DONE,
    ),
    Fault(name="no cache figure", what=lambda: meta("cached_tokens", None), ends=DONE),
]

REPLAY_FAULTS = [
    Fault(name="top-p of fewer tokens", what=lambda: top_p([0, 1]), ends=ENGINE, error="top-p"),
    Fault(name="top-p without ids", what=lambda: top_p([0, 5], ids=()), ends=ENGINE),
    Fault(name="top-p as no base64", what=lambda: meta("top_p_token_ids", "!"), ends=ENGINE),
    Fault(name="experts of fewer rows", what=lambda: meta("routed_experts", [1]), ends=ENGINE),
    Fault(name="cached tokens as text", what=lambda: meta("cached_tokens", "9"), ends=ENGINE),
]

USER_FAULTS = [
    Fault(name="429 once", what=lambda: status(429), times=1, ends=DONE),
    Fault(name="429 with Retry-After", what=lambda: status(429, Retry_After="0"), ends=USER),
    Fault(name="429 at the opening", what=lambda: status(429), turn=0, ends=USER),
    Fault(name="500 once", what=lambda: status(500), times=1, ends=DONE),
    Fault(name="500 for ever", what=lambda: status(500), ends=USER, error="HTTP 500"),
    Fault(name="401", what=lambda: status(401, "no key"), ends=USER, error="no key"),
    Fault(name="disconnects once", what=disconnect, times=1, ends=DONE),
    Fault(name="disconnects for ever", what=disconnect, ends=USER),
    Fault(name="cut for ever", what=cut, ends=USER),
    Fault(name="no headers", what=hang, ends=USER, deadline_s=SHORT_S, error="deadline"),
    Fault(name="no opening", what=hang, turn=0, ends=USER, deadline_s=SHORT_S, error="deadline"),
    Fault(name="no body", what=hang_in_body, ends=USER, deadline_s=SHORT_S, error="deadline"),
    Fault(name="HTML", what=lambda: body(b"<html>", "text/html"), ends=USER),
    Fault(name="half a JSON", what=lambda: body(b'{"choices": ['), ends=USER),
    Fault(name="empty body", what=lambda: body(b""), ends=USER),
    Fault(name="no choices", what=lambda: body(b'{"choices": []}'), ends=USER),
    Fault(name="an error object", what=lambda: body(b'{"error": {}}'), ends=USER),
    Fault(name="null content", what=lambda: content(None), ends=USER),
    Fault(name="empty content", what=lambda: content(""), ends=USER),
    Fault(name="blank content", what=lambda: content(" \n"), ends=USER),
    Fault(name="empty opening", what=lambda: content(""), turn=0, ends=USER),
    Fault(name="content as parts", what=lambda: content([{"type": "text"}]), ends=USER),
    Fault(name="lone surrogate", what=lambda: content("Yes \ud800"), ends=USER),
    Fault(name="special tokens", what=lambda: content("Yes<|im_end|>"), times=1, ends=DONE),
    Fault(name="control characters", what=lambda: content("Yes\x00\x1b[2J"), times=1, ends=DONE),
    Fault(name="marker in other words", what=lambda: content("###STOP"), times=1, ends=DONE),
]


@pytest.fixture(scope="module")
def undisturbed(checkpoint: str) -> Outcome:
    """The same episodes without a fault."""
    with pytest.MonkeyPatch.context() as patch:
        outcome = asyncio.run(play(checkpoint, patch))
    assert [sample.reward for sample in outcome.samples] == [1.0] * EPISODES
    return outcome


def test_there_are_forty_kinds_and_more() -> None:
    names = [f"engine {fault.name}" for fault in ENGINE_FAULTS]
    names += [f"replay {fault.name}" for fault in REPLAY_FAULTS]
    names += [f"user {fault.name}" for fault in USER_FAULTS]
    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize("fault", ENGINE_FAULTS, ids=lambda fault: fault.name)
async def test_an_engine_fault_costs_its_episode_at_most(
    fault: Fault, checkpoint: str, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(fault, await play(checkpoint, monkeypatch, engine=fault), undisturbed)


@pytest.mark.parametrize("fault", REPLAY_FAULTS, ids=lambda fault: fault.name)
async def test_what_does_not_fit_the_tokens_costs_its_episode_at_most(
    fault: Fault, checkpoint: str, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "moe_router_topk": 2}
    check(fault, await play(checkpoint, monkeypatch, engine=fault, **sizes), undisturbed)


@pytest.mark.parametrize("fault", USER_FAULTS, ids=lambda fault: fault.name)
async def test_a_users_fault_costs_its_episode_at_most(
    fault: Fault, checkpoint: str, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(fault, await play(checkpoint, monkeypatch, user=fault), undisturbed)


def check(fault: Fault, outcome: Outcome, undisturbed: Outcome) -> None:
    victim = outcome.samples[VICTIM]
    facts = victim.metadata["turnwise"]
    assert facts["ending"] == fault.ends, facts["error"]
    assert fault.error in (facts["error"] or "")
    lost = fault.ends != DONE
    if lost:
        assert victim.reward is None and facts["score"] is None
        assert victim.remove_sample and victim.status.value == "aborted"
        assert sum(outcome.data["loss_masks"][VICTIM]) == 0
        assert outcome.data["rewards"][VICTIM] == 0.0
    for sample, before in zip(outcome.samples, undisturbed.samples, strict=True):
        if sample.index != VICTIM:
            assert sample.tokens == before.tokens
            assert sample.rollout_log_probs == before.rollout_log_probs
            assert sample.loss_mask == before.loss_mask
            assert sample.reward == 1.0
    numbers = {
        name.removeprefix("rollout/turnwise/"): value for name, value in outcome.numbers.items()
    }
    assert numbers["started"] == EPISODES and numbers["in_flight"] == 0
    assert numbers["finished"] == EPISODES - lost
    assert numbers["coverage"] == (EPISODES - lost) / EPISODES
    kind = fault.ends.replace(":", "/")
    assert numbers[kind] == (1 if lost else EPISODES)
    json.dumps(victim.metadata)

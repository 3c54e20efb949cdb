"""Partial rollout: an aborted episode goes on where it was."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    GenerateState,
    generate_and_rm,
    generate_rollout_async,
)
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import DataSource, to_train_data
from slime_standin.errands import Courier, rows, says
from turnwise.config import ConfigError
from turnwise.engine import SamplingParams
from turnwise.engine.sglang import SGLangCompletion
from turnwise.episode import Boundary, BoundaryError
from turnwise.replay import Replay
from turnwise.slime import accounts, generate, shared
from turnwise.slime.replay import EpisodeReplay, ReplayEngine
from turnwise.testing import ScriptedEngine, reply
from turnwise.testing.servers import Call, FakeChat, FakeSGLang, Turn, edit

PANEL = {"method": "slime_standin.methods:Panel"}
PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 1024}


@pytest.fixture
def courier() -> Courier:
    """Asks twice, then makes its call, all of it right."""
    return Courier(asks=2)


def sampled(kept: dict[str, Any]) -> int:
    """Tokens of the kept turns."""
    return sum(len(base64.b64decode(turn["ids"])) // 4 for turn in kept["turns"])


def abort_at(server: FakeSGLang, turn: int) -> None:
    """The server gives that turn back unfinished, once."""
    cut = edit(_unfinished)
    left = [cut]
    server.misbehave = lambda call: left.pop() if call.turn == turn and left else None


def _unfinished(answer: dict[str, Any]) -> None:
    meta = answer["meta_info"]
    meta["finish_reason"] = {"type": "abort"}
    meta["output_token_logprobs"] = meta["output_token_logprobs"][:3]
    meta["completion_tokens"] = 3


def row(index: int = 0) -> Any:
    sample = rows(index + 1)[index]
    sample.index, sample.session_id = index, f"session-{index}"
    return sample


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
async def test_an_episode_goes_on_with_the_ids_it_had(
    args: Callable[..., Any], server: FakeSGLang, turn: int
) -> None:
    arguments = args(partial_rollout=True)
    whole = await generate(arguments, row(), PARAMS)
    server._turns.clear()
    abort_at(server, turn)
    server.calls.clear()
    half = await generate(arguments, row(), PARAMS)
    assert half.status is Sample.Status.ABORTED and half.reward is None and half.remove_sample
    assert half.metadata["turnwise"]["ending"] == "cancelled"
    half.metadata = json.loads(json.dumps(half.metadata))
    kept = half.metadata["turnwise_replay"]
    assert len(kept["turns"]) == turn
    if turn:
        assert whole.tokens[: len(half.tokens)] == half.tokens
        assert half.response and sum(half.loss_mask) == sampled(kept)
    sent = len(server.calls)
    done = await generate(arguments, half, PARAMS)
    assert done.status is Sample.Status.COMPLETED and done.reward == 1.0
    assert not done.remove_sample and "turnwise_replay" not in done.metadata
    for name in ("tokens", "loss_mask", "rollout_log_probs", "response", "weight_versions"):
        assert getattr(done, name) == getattr(whole, name), name
    assert done.prefix_cache_info.total_prompt_tokens == whole.prefix_cache_info.total_prompt_tokens
    # Finished turns are not sampled again.
    prompt_sizes = [len(call.body["input_ids"]) for call in server.calls[sent:]]
    assert len(prompt_sizes) == 4 - turn
    period = accounts.TRAIN.take()
    period.check()
    assert period.ledger.as_dict() == {
        "started": 3,
        "finished": 2,
        "stopped": {},
        "lost": {},
        "cancelled": 1,
    }


async def test_tokens_of_older_weights_are_masked_when_slime_asks_for_it(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    arguments = args(partial_rollout=True, mask_offpolicy_in_partial_rollout=True)
    abort_at(server, 2)
    half = await generate_and_rm(arguments, row(), PARAMS)
    old = sampled(half.metadata["turnwise_replay"])
    server.weight_version = "2"
    done = await generate_and_rm(arguments, half, PARAMS)
    assert done.weight_versions == ["1", "1", "2", "2"]
    plain = await generate(args(partial_rollout=True), row(), PARAMS)
    assert done.tokens == plain.tokens
    assert sum(plain.loss_mask) - sum(done.loss_mask) == old
    assert done.rollout_log_probs == plain.rollout_log_probs


async def test_slimes_own_abort_and_resume_samples_no_turn_twice(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    arguments = args(
        partial_rollout=True,
        rollout_batch_size=1,
        over_sampling_batch_size=3,
        n_samples_per_prompt=2,
    )
    arguments.dynamic_sampling_filter_path = "slime_standin.contract.keep_all"
    source = DataSource(arguments, rows(6))
    server.slow = lambda call: 0.02 * (1 + session_number(server, call.session) // 2)
    groups, _, again = await generate_rollout_async(arguments, 0, source.get_samples)
    to_train_data(arguments, groups)
    assert len(again) == 2
    assert server.aborts == 1
    source.add_samples(again)
    halves = [sample for group in again for sample in group]
    turns = {
        sample.index: len(sample.metadata["turnwise_replay"]["turns"])
        for sample in halves
        if "turnwise_replay" in sample.metadata
    }
    assert any(turns.values()), "the abort came before any turn was finished"
    finished = {sample.index: list(sample.tokens) for sample in halves if sample.response}
    for step in (1, 2):
        groups, _, again = await generate_rollout_async(arguments, step, source.get_samples)
        to_train_data(arguments, groups)
        source.add_samples(again)
        for sample in groups[0]:
            assert sample.reward == 1.0
            before = finished.get(sample.index, [])
            assert sample.tokens[: len(before)] == before
    answered = [
        (call.session, len(call.body["input_ids"])) for call in server.calls if call in server.done
    ]
    assert len(answered) == len(set(answered))
    period = accounts.TRAIN.take()
    period.check()
    assert period.ledger.as_dict()["lost"] == {}


def session_number(server: FakeSGLang, session: str) -> int:
    sessions = list(dict.fromkeys(call.session for call in server.calls))
    return sessions.index(session)


async def test_no_turn_is_begun_after_slimes_abort(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    arguments = args(partial_rollout=True)

    def end_rollout(call: Call, turn: Turn) -> dict[str, Any]:
        GenerateState(arguments).aborted = True
        return {}

    server.more_meta = end_rollout
    sample = await generate(arguments, row(), PARAMS)
    assert len(server.calls) == 1
    assert len(sample.metadata["turnwise_replay"]["turns"]) == 1
    assert len(sample.metadata["turnwise_replay"]["services"]["user"]) == 2


async def test_a_record_that_does_not_fit_loses_the_episode_to_the_environment(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    abort_at(server, 2)
    half = await generate(args(partial_rollout=True), row(), PARAMS)
    kept = half.metadata["turnwise_replay"]["turns"][1]
    ids = np.frombuffer(base64.b64decode(kept["prompt"]), "<i4").copy()
    ids[4] ^= 1
    kept["prompt"] = base64.b64encode(ids.tobytes()).decode()
    done = await generate(args(partial_rollout=True), half, PARAMS)
    facts = done.metadata["turnwise"]
    assert facts["ending"] == "lost:environment"
    assert "turn 1 can't be replayed: token " in facts["error"]
    assert "turnwise_replay" not in done.metadata
    afresh = await generate(args(partial_rollout=True), done, PARAMS)
    assert afresh.reward == 1.0 and not afresh.remove_sample


async def test_forks_and_partial_rollout_do_not_go_together(args: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="--partial-rollout keeps unfinished groups"):
        await generate(args(turnwise={"on_rewrite": "fork"}, partial_rollout=True), row(), PARAMS)


async def test_a_user_behind_an_endpoint_is_not_asked_again_for_what_it_has_said(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    async with FakeChat(says) as endpoint:
        arguments = args(turnwise={"user_url": f"{endpoint.url}/v1"}, partial_rollout=True)
        abort_at(server, 1)
        half = await generate(arguments, row(), PARAMS)
        asked = [list(call.body["messages"]) for call in endpoint.calls]
        half.metadata = json.loads(json.dumps(half.metadata))
        done = await generate(arguments, half, PARAMS)
        assert done.reward == 1.0
        again = [list(call.body["messages"]) for call in endpoint.calls][len(asked) :]
        assert len(asked) == 2 and len(again) == 1
        assert again[0][: len(asked[-1])] == asked[-1]
        assert len(again[0]) == len(asked[-1]) + 2


async def test_conversations_side_by_side_and_a_frozen_model_go_on_where_they_were(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    arguments = args(turnwise=PANEL, partial_rollout=True)
    whole = await generate(arguments, row(), PARAMS)
    asked = shared.find_method(arguments).asked
    assert whole.reward == 1.0 and len(asked) == len(server.calls) == 6
    for cut in range(1, 6):
        asked.clear()
        broken = server.calls[-1].number + cut
        server.misbehave = lambda call, at=broken: edit(_unfinished) if call.number == at else None
        half = await generate(arguments, row(), PARAMS)
        assert half.metadata["turnwise"]["ending"] == "cancelled"
        half.metadata = json.loads(json.dumps(half.metadata))
        kept, sent = half.metadata["turnwise_replay"], len(server.calls)
        assert {turn["session"] for turn in kept["turns"]} <= {"left", "right"}
        done = await generate(arguments, half, PARAMS)
        assert done.reward == 1.0, (cut, done.metadata["turnwise"])
        for name in ("tokens", "loss_mask", "rollout_log_probs", "weight_versions"):
            assert getattr(done, name) == getattr(whole, name), name
        assert len(server.calls) - sent == 6 - len(kept["turns"])
        assert len(asked) == 6, "the model was asked again for what it had answered"


async def test_an_agent_that_says_something_else_than_recorded_is_found(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    abort_at(server, 2)
    half = await generate(args(partial_rollout=True), row(), PARAMS)
    half.metadata["turnwise_replay"]["services"]["user"][1]["asked"][0]["content"] = "other"
    done = await generate(args(partial_rollout=True), half, PARAMS)
    assert done.metadata["turnwise"]["ending"] == "lost:environment"
    assert "call 1 of user can't be replayed" in done.metadata["turnwise"]["error"]


async def test_without_partial_rollout_nothing_is_kept_of_what_was_cut_off(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    abort_at(server, 2)
    half = await generate(args(), row(), PARAMS)
    assert half.status is Sample.Status.ABORTED and "turnwise_replay" not in half.metadata


def turn(tokens: list[int], **meta: Any) -> SGLangCompletion:
    logprobs = np.full(len(tokens), -0.1, np.float32)
    return SGLangCompletion(np.array(tokens, np.int32), logprobs, "stop", meta=meta)


def prompt(*tokens: int) -> Any:
    return np.array(tokens, dtype=np.int32)


def test_a_turn_holds_what_came_since_the_one_before_and_experts_are_the_last_one_s() -> None:
    replay = EpisodeReplay()
    replay.add("", 0, prompt(7, 0), turn([3, 4], routed_experts="a"))
    replay.add("other", 0, prompt(9), turn([5]))
    replay.add("", 1, prompt(7, 0, 3, 4, 7, 1), turn([3, 4], routed_experts="b"))
    state = json.loads(json.dumps(replay.state()))
    assert [one["after"] for one in state["turns"]] == [-1, -1, 0]
    held = [np.frombuffer(base64.b64decode(t["prompt"]), "<i4").tolist() for t in state["turns"]]
    assert held == [[7, 0], [9], [7, 1]]
    again = EpisodeReplay(state).turns
    assert ["routed_experts" in one.meta for one in again.values()] == [False, False, True]
    assert again["", 1].prompt.tolist() == [7, 0, 3, 4, 7, 1]
    assert again["", 1].completion.logprobs.tolist() == [np.float32(-0.1)] * 2


async def test_turns_asked_for_at_once_are_found_by_their_place() -> None:
    replay = EpisodeReplay()
    replay.add("", 1, prompt(2), turn([20]))
    replay.add("", 2, prompt(3), turn([30]))
    sampled = ScriptedEngine([reply([10])])
    engine = ReplayEngine(
        sampled,
        EpisodeReplay(replay.state()),
        rollout_id="train/0#5",
        routing_key="key",
        aborted=lambda: False,
        span=lambda params: nullcontext(lambda meta: None),
    )
    turns = [
        await engine.generate(prompt(n), SamplingParams(), session_id="train/0#5")
        for n in (1, 2, 3)
    ]
    assert [one.ids.tolist() for one in turns] == [[10], [20], [30]]
    assert [call.session_id for call in sampled.calls] == ["key"]


async def test_a_call_that_was_broken_off_is_made_again_and_the_others_are_not() -> None:
    made: list[str] = []

    async def ask(replay: Replay, name: str, *, fails: bool = False) -> Any:
        async def make() -> str:
            await asyncio.sleep(0)
            if fails:
                raise BoundaryError(Boundary.JUDGE, "gone")
            made.append(name)
            return name.upper()

        return await replay.call("judge", name, make)

    first = Replay()
    await asyncio.gather(
        ask(first, "a"), ask(first, "b", fails=True), ask(first, "c"), return_exceptions=True
    )
    assert made == ["a", "c"]
    again = Replay(json.loads(json.dumps(first.calls)))
    assert await asyncio.gather(*(ask(again, name) for name in "abc")) == ["A", "B", "C"]
    assert made == ["a", "c", "b"]
    assert [one["place"] for one in again.calls["judge"]] == [0, 1, 2]


def test_an_episode_without_turns_has_nothing_to_go_on_from() -> None:
    assert EpisodeReplay().state() == {}

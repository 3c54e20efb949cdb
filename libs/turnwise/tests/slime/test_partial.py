"""Partial rollout: an aborted episode goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
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
from slime_standin.desk import Desk, openings, prompts
from slime_standin.methods import EndpointUser, Forgetful, TauWith
from slime_standin.servers import Call, FakeSGLang, FakeUser, Turn, edit
from taubench.episode import compact_user
from taubench.method import TauOptions
from taubench.users import UserConfig
from turnwise.config import ConfigError
from turnwise.engine.http import HttpPool
from turnwise.slime import books, generate, hooks
from turnwise.slime.record import Record

PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 1024}


@pytest.fixture
def desk(tokenizer: Any) -> Desk:
    """Asks twice, then makes its calls, all of them right."""
    return Desk(tokenizer, asks=2)


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
    sample = prompts(index + 1)[index]
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
    kept = half.metadata["turnwise_record"]
    assert len(kept["turns"]) == turn
    if turn:
        assert whole.tokens[: len(half.tokens)] == half.tokens
        assert half.response and sum(half.loss_mask) == sum(len(t["ids"]) for t in kept["turns"])
    sent = len(server.calls)
    done = await generate(arguments, half, PARAMS)
    assert done.status is Sample.Status.COMPLETED and done.reward == 1.0
    assert not done.remove_sample and "turnwise_record" not in done.metadata
    for name in ("tokens", "loss_mask", "rollout_log_probs", "response", "weight_versions"):
        assert getattr(done, name) == getattr(whole, name), name
    assert done.prefix_cache_info.total_prompt_tokens == whole.prefix_cache_info.total_prompt_tokens
    # Finished turns are not sampled again.
    prompt_sizes = [len(call.body["input_ids"]) for call in server.calls[sent:]]
    assert len(prompt_sizes) == 4 - turn
    page = books.TRAIN.take()
    page.check()
    assert page.ledger.as_dict() == {
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
    old = sum(len(turn["ids"]) for turn in half.metadata["turnwise_record"]["turns"])
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
    source = DataSource(arguments, prompts(6))
    server.slow = lambda call: 0.02 * (1 + desk_number(server, call.session) // 2)
    groups, _, again = await generate_rollout_async(arguments, 0, source.get_samples)
    to_train_data(arguments, groups)
    assert len(again) == 2
    assert server.aborts == 1
    source.add_samples(again)
    halves = [sample for group in again for sample in group]
    turns = {
        sample.index: len(sample.metadata["turnwise_record"]["turns"])
        for sample in halves
        if "turnwise_record" in sample.metadata
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
    page = books.TRAIN.take()
    page.check()
    assert page.ledger.as_dict()["lost"] == {}


def desk_number(server: FakeSGLang, session: str) -> int:
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
    assert len(sample.metadata["turnwise_record"]["turns"]) == 1
    assert len(sample.metadata["turnwise_record"]["replies"]) == 1


async def test_a_record_that_does_not_fit_loses_the_episode_to_the_environment(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    abort_at(server, 2)
    half = await generate(args(partial_rollout=True), row(), PARAMS)
    half.metadata["turnwise_record"]["turns"][1]["prompt"][4] ^= 1
    done = await generate(args(partial_rollout=True), half, PARAMS)
    facts = done.metadata["turnwise"]
    assert facts["ending"] == "lost:environment"
    assert "turn 1 can't be replayed: token " in facts["error"]
    assert "turnwise_record" not in done.metadata
    afresh = await generate(args(partial_rollout=True), done, PARAMS)
    assert afresh.reward == 1.0 and not afresh.remove_sample


async def test_forks_and_partial_rollout_do_not_go_together(args: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="--partial-rollout keeps unfinished groups"):
        await generate(args(turnwise={"on_rewrite": "fork"}, partial_rollout=True), row(), PARAMS)


def customer(monkeypatch: pytest.MonkeyPatch, user: Callable[[], Any]) -> None:
    """Every episode talks to `user()`."""
    options = TauOptions(user=UserConfig(strategy="offline"), prompt="compact", max_turns=8)
    monkeypatch.setattr(hooks, "_shared", {})
    monkeypatch.setattr(hooks, "make_method", lambda settings: TauWith(options, user))


def says(messages: list[dict[str, Any]]) -> str:
    if len(messages) == 1:
        found = [w for w, t in openings().items() if t.instruction == messages[0]["content"]]
        return found[0]
    return "###STOP###" if "done" in messages[-1]["content"] else "Yes, please."


async def test_a_customer_behind_an_endpoint_is_told_the_conversation_and_not_asked_again(
    args: Callable[..., Any], server: FakeSGLang, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = HttpPool()
    async with FakeUser(says) as endpoint:
        customer(monkeypatch, lambda: EndpointUser(endpoint.url, pool))
        abort_at(server, 1)
        half = await generate(args(partial_rollout=True), row(), PARAMS)
        asked = [list(call.body["messages"]) for call in endpoint.calls]
        done = await generate(args(partial_rollout=True), half, PARAMS)
        assert done.reward == 1.0
        again = [list(call.body["messages"]) for call in endpoint.calls][len(asked) :]
        assert len(asked) == 2 and len(again) == 2
        # The first new request holds all that was said before the abort.
        assert again[0][: len(asked[-1])] == asked[-1]
        assert len(again[0]) == len(asked[-1]) + 2
        await pool.close()


async def test_a_customer_that_cannot_go_on_loses_the_episode_and_keeps_others_going(
    args: Callable[..., Any], server: FakeSGLang, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer(monkeypatch, lambda: Forgetful(compact_user()))
    abort_at(server, 1)
    half = await generate(args(partial_rollout=True), row(), PARAMS)
    done = await generate(args(partial_rollout=True), half, PARAMS)
    assert done.metadata["turnwise"]["ending"] == "lost:user"
    assert "forgetful has no resume" in done.metadata["turnwise"]["error"]
    assert (await generate(args(partial_rollout=True), row(1), PARAMS)).reward == 1.0


async def test_an_agent_that_says_something_else_than_recorded_is_found(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    abort_at(server, 2)
    half = await generate(args(partial_rollout=True), row(), PARAMS)
    half.metadata["turnwise_record"]["replies"][0]["heard"] = "something else"
    done = await generate(args(partial_rollout=True), half, PARAMS)
    assert done.metadata["turnwise"]["ending"] == "lost:environment"
    assert "reply 0 can't be replayed" in done.metadata["turnwise"]["error"]


def test_experts_are_kept_for_the_last_turn_alone() -> None:
    from turnwise.engine.sglang import SGLangCompletion

    record = Record()
    context = np.empty(0, np.int32)
    for turn in range(3):
        prompt = np.concatenate([context, np.array([7, turn], dtype=np.int32)])
        ids = np.array([3, 4], dtype=np.int32)
        meta = {"routed_experts": "x" * turn}
        completion = SGLangCompletion(ids, np.zeros(2, np.float32), "stop", meta=meta)
        record.add_turn(context, prompt, completion)
        context = np.concatenate([prompt, ids])
    assert ["routed_experts" in turn["meta"] for turn in record.turns] == [False, False, True]
    assert [turn["shared"] for turn in record.turns] == [0, 4, 8]
    assert [turn["prompt"] for turn in record.turns] == [[7, 0], [7, 1], [7, 2]]


def test_an_empty_record_has_no_state() -> None:
    assert Record().state() == {}
    assert Record({}).replayed == 0

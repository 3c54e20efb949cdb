"""Every strategy and every user through slime's hooks, and a user's own conversation kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from slime.observability import logging_utils  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    generate_and_rm_group,
)
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import to_train_data
from slime_standin.desk import GOODBYE, Desk, Speaker, customer, openings, prompts
from taubench.fewshot import demonstrated
from taubench.strategies import STRATEGIES
from turnwise.command import StopRun
from turnwise.config import ConfigError
from turnwise.slime import accounts, close, generate, rollout_log, shared
from turnwise.testing.servers import Call, FakeChat, FakeSGLang, Turn, body, edit, status

PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 1024}


@pytest.fixture
def desk(tokenizer: Any) -> Desk:
    """Asks once, makes its calls, says goodbye."""
    return Speaker(tokenizer, asks=1)


@pytest.fixture
async def endpoint() -> AsyncIterator[FakeChat]:
    async with FakeChat(customer) as found:
        yield found
        await close()


def served(endpoint: FakeChat, **options: Any) -> dict[str, Any]:
    user = {"model": "m", "base_url": f"{endpoint.url}/v1", "key_env": "", "backoff_s": 0.001}
    return {"user": {**user, **options}}


def row(index: int = 0) -> Any:
    sample = prompts(index + 1)[index]
    sample.index, sample.group_index, sample.session_id = index, 0, f"session-{index}"
    return sample


def asked(endpoint: FakeChat) -> list[Call]:
    """What a user was asked; whether the endpoint is there is asked without a part to play."""
    return [call for call in endpoint.calls if call.body["messages"][0]["role"] == "system"]


def ledger() -> dict[str, Any]:
    numbers = logging_utils.logged[-1]
    return {key.removeprefix("rollout/turnwise/"): value for key, value in numbers.items()}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_strategy_plays_and_trains_what_was_sampled(
    args: Callable[..., Any], server: FakeSGLang, strategy: str
) -> None:
    sampled: list[int] = []

    def keep(call: Call, turn: Turn) -> dict[str, Any]:
        sampled.extend(turn.ids)
        return {}

    server.more_meta = keep
    arguments = args(turnwise={"agent_strategy": strategy}, rollout_max_context_len=32768)
    # The first task of the family is one of the demonstrations of few-shot.
    sample = await generate(arguments, row(1), PARAMS)
    assert sample.metadata["turnwise"]["ending"] == "finished", sample.metadata
    assert sample.reward == 1.0
    pairs = zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True)
    assert [token for token, on in pairs if on] == sampled
    assert sample.metadata["turnwise"]["metrics"]["parse_errors"] == 0
    assert ("Observation: " in sample.response) == (strategy in ("act", "react"))


@pytest.mark.parametrize("strategy", ["llm", "react", "verify", "reflection"])
async def test_every_customer_played_by_a_model_is_heard_without_its_thoughts(
    args: Callable[..., Any], endpoint: FakeChat, strategy: str
) -> None:
    given = served(endpoint, strategy=strategy, read_price=1.0, write_price=2.0)
    arguments = args(turnwise={**given, "agent_strategy": "react"}, rollout_max_context_len=32768)
    samples = await generate_and_rm_group(arguments, [row(0), row(1)], PARAMS)
    assert [sample.reward for sample in samples] == [1.0, 1.0], samples[0].metadata
    assert all("so be it" not in sample.response for sample in samples)
    assert rollout_log(0, arguments, samples, {}, 1.0) is True
    numbers = ledger()
    assert (numbers["started"], numbers["finished"], numbers["coverage"]) == (2, 2, 1.0)
    assert numbers["user/requests"] == len(endpoint.calls) >= 6
    assert numbers["user/usd"] == pytest.approx(len(endpoint.calls) * (20 * 1.0 + 10 * 2.0) / 1e6)


@pytest.mark.parametrize("strategy", ["llm", "react"])
@pytest.mark.parametrize("turn", [0, 1, 2])
async def test_an_aborted_conversation_goes_on_without_asking_the_customer_anew(
    args: Callable[..., Any], server: FakeSGLang, endpoint: FakeChat, strategy: str, turn: int
) -> None:
    arguments = args(turnwise=served(endpoint, strategy=strategy), partial_rollout=True)
    whole = await generate(arguments, row(), PARAMS)
    needed = [call.body["messages"] for call in asked(endpoint)]
    assert len(needed) == 3
    endpoint.calls.clear()
    server._turns.clear()
    left = [edit(_unfinished)]
    server.misbehave = lambda call: left.pop() if call.turn == turn and left else None
    half = await generate(arguments, row(), PARAMS)
    assert half.status is Sample.Status.ABORTED and half.reward is None
    half.metadata = json.loads(json.dumps(half.metadata))
    await close()
    done = await generate(arguments, half, PARAMS)
    assert (done.reward, done.tokens) == (1.0, whole.tokens)
    assert (done.loss_mask, done.rollout_log_probs) == (whole.loss_mask, whole.rollout_log_probs)
    again = [call.body["messages"] for call in asked(endpoint)]
    assert len(again) == len(needed), "a recorded reply was asked for again"
    # react's thoughts are in no record: what was said goes on without them.
    said = [[one["role"] for one in messages] for messages in again]
    assert said == [[one["role"] for one in messages] for messages in needed]
    assert again[-1][-1] == needed[-1][-1] == {"role": "user", "content": GOODBYE}


def _unfinished(answer: dict[str, Any]) -> None:
    meta = answer["meta_info"]
    meta["finish_reason"] = {"type": "abort"}
    meta["output_token_logprobs"] = meta["output_token_logprobs"][:2]
    meta["completion_tokens"] = 2


@pytest.mark.parametrize(
    ("fault", "ending"),
    [
        (status(429), "lost:user"),
        (status(400), "lost:user"),
        (body(b'{"choices": [{"message": {"content": ""}}]}'), "lost:user"),
        (body(b'{"choices": [{"message": {"content": "###OUT-OF-SCOPE###"}}]}'), "lost:user"),
    ],
    ids=["busy", "refused", "empty", "out-of-scope"],
)
async def test_a_customer_that_fails_for_good_costs_its_episode_and_no_reward(
    args: Callable[..., Any], endpoint: FakeChat, fault: Any, ending: str
) -> None:
    instruction = openings()[sorted(openings(), key=lambda one: openings()[one].index)[1]]
    endpoint.misbehave = lambda call: (
        fault if instruction.instruction in call.body["messages"][0]["content"] else None
    )
    # Far from what a busy machine needs for one answer on the loopback.
    arguments = args(turnwise={**served(endpoint), "user_deadline_s": 9.0})
    samples = await generate_and_rm_group(arguments, [row(0), row(1), row(2)], PARAMS)
    endings = [sample.metadata["turnwise"]["ending"] for sample in samples]
    assert endings == ["finished", ending, "finished"]
    assert [sample.reward for sample in samples] == [1.0, None, 1.0]
    data = to_train_data(arguments, [samples])
    assert sum(data["loss_masks"][1]) == 0
    # The client's own deadline ends first, so the error says what the endpoint did.
    assert "deadline: no answer" not in samples[1].metadata["turnwise"]["error"]
    rollout_log(0, arguments, samples, {}, 1.0)
    assert (ledger()["started"], ledger()["finished"], ledger()["lost/user"]) == (3, 2, 1)


async def test_a_spent_budget_ends_the_run(args: Callable[..., Any], endpoint: FakeChat) -> None:
    budget = {"write_price": 1.0, "max_tokens": 10, "spend_cap_usd": 0.000041}
    arguments = args(turnwise=served(endpoint, **budget))
    assert (await generate(arguments, row(), PARAMS)).reward == 1.0
    with pytest.raises(StopRun, match=r"user.spend-cap-usd: the spend cap of \$0.00 is reached"):
        await generate(arguments, row(1), PARAMS)
    assert len(endpoint.calls) == 4
    assert accounts.TRAIN.take().ledger.as_dict()["cancelled"] == 1


async def test_recorded_replies_are_played_again_without_a_request(
    args: Callable[..., Any], endpoint: FakeChat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "replies.jsonl")
    first = await generate(args(turnwise=served(endpoint, user_cache=path)), row(), PARAMS)
    assert first.reward == 1.0 and len(asked(endpoint)) == 3
    await close()
    shared._loops.clear()
    replay = served(endpoint, user_cache=path, user_replay=True)
    again = await generate(args(turnwise=replay), row(), PARAMS)
    other = await generate(args(turnwise=replay), row(1), PARAMS)
    assert again.tokens == first.tokens and len(asked(endpoint)) == 3
    assert other.metadata["turnwise"]["ending"] == "lost:user"
    assert "record it first" in other.metadata["turnwise"]["error"]


async def test_a_customer_that_slime_serves_is_found_by_its_name_there(
    args: Callable[..., Any], endpoint: FakeChat
) -> None:
    arguments = args(turnwise={"user": {"sglang": "customer"}})
    with pytest.raises(ConfigError, match="no model 'customer'; there are none"):
        await generate(arguments, row(), PARAMS)
    arguments.sglang_model_routers = {"customer": ("127.0.0.1", endpoint.port)}
    sample = await generate(arguments, row(), PARAMS)
    assert sample.reward == 1.0
    assert {call.body["model"] for call in asked(endpoint)} == {"customer"}


async def test_a_demonstrated_task_is_no_task_for_few_shot(args: Callable[..., Any]) -> None:
    task = demonstrated("retail")[0]
    sample = Sample(prompt=task.index, index=0, metadata={"env": "retail", "task_split": "train"})
    arguments = args(turnwise={"agent_strategy": "few-shot"}, rollout_max_context_len=32768)
    with pytest.raises(ConfigError, match="is a demonstration of agent-strategy few-shot"):
        await generate(arguments, sample, PARAMS)
    assert (await generate(args(), sample, PARAMS)).metadata["turnwise"]["task_id"] == task.id


async def test_airline_plays_as_retail_does(
    args: Callable[..., Any], server: FakeSGLang, tokenizer: Any
) -> None:
    server._answer = Desk(tokenizer, wrong=lambda number: True).answer
    arguments = args(
        turnwise={"env": "airline", "task_split": "test", "prompt": "full"},
        rollout_max_context_len=65536,
    )
    sample = await generate(arguments, Sample(prompt=3, index=0, metadata={}), PARAMS)
    facts = sample.metadata["turnwise"]
    assert (facts["task_id"], facts["ending"]) == ("airline/test/3", "finished")

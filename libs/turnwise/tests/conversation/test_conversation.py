"""A policy is sampled in one place; what it said is what is trained."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tokendelta
from turnwise.conversation import Conversation, Overflow, ToolCall, Turn
from turnwise.conversation.clock import play_within
from turnwise.conversation.history import LONG_CHARACTERS
from turnwise.conversation.recorded import Recorded
from turnwise.conversation.tokens import TokenHistory
from turnwise.episode import Boundary, BoundaryError, DeadlineExceeded, Ending, Limit
from turnwise.models.client import ChatClient
from turnwise.models.config import ChatConfig
from turnwise.policy import EndpointPolicy
from turnwise.rollout import Rollout, derive_seed
from turnwise.testing import (
    ScriptedEngine,
    byte_policy,
    call,
    decode,
    encode,
    fail,
    reply,
    say,
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        },
    }
]
USER = {"role": "user", "content": "hello"}


def rollout(rollout_id: str = "r0") -> Rollout[str]:
    return Rollout(task="t", task_id="task", rollout_id=rollout_id, group_id="g", seed=7)


def talk(engine: Any, **options: Any) -> Conversation:
    limits = {name: options.pop(name) for name in ("context", "max_new_tokens") if name in options}
    return Conversation(byte_policy(engine, **limits), rollout(), **options)


async def ask(conversation: Conversation, *messages: Any) -> Turn:
    turn = await conversation.ask(messages)
    assert isinstance(turn, Turn)
    return turn


async def test_the_prompt_of_a_turn_is_the_recorded_prefix_bit_for_bit() -> None:
    engine = ScriptedEngine([say("one"), say("two")])
    async with talk(engine) as chat:
        await ask(chat, USER)
        await ask(chat, {"role": "user", "content": "again"})
        (segment,) = chat.segments()
    for made in engine.calls:
        assert np.array_equal(made.prompt_ids, segment.ids[: len(made.prompt_ids)])
    trained = segment.ids[segment.prompt_length :][segment.loss_mask == 1]
    assert decode(trained) == "one<|im_end|>two<|im_end|>"


async def test_a_long_message_is_encoded_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[bool] = []
    extend = TokenHistory.extend

    def watched(self: TokenHistory, messages: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return extend(self, messages)

    monkeypatch.setattr(TokenHistory, "extend", watched)
    long = {"role": "user", "content": "x" * LONG_CHARACTERS}
    async with talk(ScriptedEngine([say("one"), say("two")]), context=300_000) as chat:
        await ask(chat, USER)
        await ask(chat, long)
        (segment,) = chat.segments()
        assert isinstance(await chat.ask([long, long]), Overflow)
    assert threads == [False, True, True]
    assert decode(segment.ids).count("x") == LONG_CHARACTERS


async def test_a_cancelled_episode_waits_for_what_is_written_to_its_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, written = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def slow(self: TokenHistory, messages: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.05)
        written.append(True)

    monkeypatch.setattr(TokenHistory, "extend", slow)
    chat = talk(ScriptedEngine([]))
    asking = asyncio.create_task(chat.ask([{"role": "user", "content": "x" * LONG_CHARACTERS}]))
    await begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert written


async def test_turn_k_has_a_seed_of_its_own_and_the_engines_session_is_released_once() -> None:
    engine = ScriptedEngine([say("one"), say("two")])
    async with talk(engine) as chat:
        await ask(chat, USER)
        await chat.fresh([USER])
    assert [made.params.seed for made in engine.calls] == [
        derive_seed(7, "turn", 0),
        derive_seed(7, "turn", 1),
    ]
    assert engine.released == ["r0"]


async def test_calls_are_read_and_told_to_the_template_as_calls() -> None:
    engine = ScriptedEngine([say("I look." + call("look", at="sky")), say("done")])
    async with talk(engine, tools=TOOLS) as chat:
        turn = await ask(chat, USER)
        assert turn.calls == (ToolCall("look", {"at": "sky"}),)
        assert (turn.content, turn.errors, turn.ending) == ("I look.", (), None)
        await ask(chat, {"role": "tool", "name": "look", "content": "blue"})
        rows = chat.transcript()
    assert rows[1]["tool_calls"][0]["function"]["name"] == "look"
    assert [row["author"] for row in rows] == ["user", "policy", "tool:look", "policy"]
    prompt = decode(engine.calls[1].prompt_ids)
    assert prompt.endswith("blue\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


async def test_what_can_not_be_read_is_an_error_of_the_turn_and_raises_nothing() -> None:
    engine = ScriptedEngine([say("<tool_call>\n{broken\n</tool_call>")])
    async with talk(engine, tools=TOOLS) as chat:
        turn = await ask(chat, USER)
    assert turn.calls == () and turn.errors
    assert chat.metrics()["parse_errors"] == len(turn.errors)


@pytest.mark.parametrize(
    ("answer", "limits", "ending"),
    [
        (reply([65] * 9), {"max_new_tokens": 5}, Ending.stopped(Limit.TOKENS)),
        (reply([65] * 99), {"context": 60}, Ending.stopped(Limit.CONTEXT)),
        (reply([65], finish="abort"), {}, Ending.cancelled()),
    ],
)
async def test_a_turn_that_is_not_whole_says_how_the_episode_ends(
    answer: Any, limits: dict[str, int], ending: Ending
) -> None:
    async with talk(ScriptedEngine([answer]), **limits) as chat:
        turn = await ask(chat, USER)
        assert turn.ending == ending
        assert chat.episode(ending, score=0.0).ending == ending


async def test_a_prompt_without_room_is_an_overflow_before_anything_is_sampled() -> None:
    engine = ScriptedEngine([])
    async with talk(engine, context=20) as chat:
        found = await chat.ask([USER])
    assert isinstance(found, Overflow) and found.limit == 20 and found.needed > 20
    assert found.ending == Ending.stopped(Limit.CONTEXT)
    assert not engine.calls


async def test_fresh_turns_are_segments_of_one_episode_whose_weights_sum_to_one() -> None:
    engine = ScriptedEngine([say("one"), say("longer"), say("three")])
    async with talk(engine) as chat:
        await chat.fresh([USER])
        await chat.fresh([{"role": "user", "content": "other"}])
        await chat.fresh([USER])
        segments = chat.segments()
        rows = chat.transcript()
    assert [segment.segment for segment in segments] == [0, 1, 2]
    assert sum(segment.weight for segment in segments) == pytest.approx(1.0)
    assert [{span.turn for span in segment.spans} for segment in segments] == [{0}, {1}, {2}]
    assert [row["segment"] for row in rows if row["author"] == "policy"] == [0, 1, 2]
    for row in rows:
        start, stop = row["span"]
        assert row["content"] in decode(segments[row["segment"]].ids[start:stop])


def test_what_is_dropped_or_rewritten_is_told_by_the_conversations_turns() -> None:
    dropped = tokendelta.SampleSet((), (tokendelta.Drop(1, 0, 1, "header replaced"),))
    session = SimpleNamespace(
        samples=lambda: dropped, rewrites=[tokendelta.Rewrite(1, "history", True)]
    )
    recorded = Recorded([cast(Any, SimpleNamespace(session=session, numbers=[0, 2]))])
    assert [drop["turn"] for drop in recorded.dropped] == [2]
    assert [rewrite["turn"] for rewrite in recorded.rewrites] == [2]


async def test_a_prompt_of_ids_reaches_the_engine_and_the_segment_as_it_is() -> None:
    ids = np.array([250, 251, *encode("<|im_start|>assistant\n")], dtype=np.int32)
    engine = ScriptedEngine([say("memory")])
    async with talk(engine) as chat:
        await chat.fresh(ids=ids)
        (segment,) = chat.segments()
    assert np.array_equal(engine.calls[0].prompt_ids, ids)
    assert np.array_equal(segment.ids[: segment.prompt_length], ids)
    assert decode(segment.ids[segment.prompt_length :]) == "memory<|im_end|>"


async def test_a_fresh_turn_has_its_own_limit_below_the_policys_and_gives_its_ids() -> None:
    engine = ScriptedEngine([say("memory"), say("memory"), say("memory")])
    async with talk(engine, max_new_tokens=5) as chat:
        turns = [await chat.fresh([USER], max_new_tokens=most) for most in (3, 9, None)]
        segments = chat.segments()
    assert [made.params.max_new_tokens for made in engine.calls] == [3, 5, 5]
    for turn, segment in zip(turns, segments, strict=True):
        assert isinstance(turn, Turn) and turn.limit is Limit.TOKENS and turn.ids is not None
        assert np.array_equal(turn.ids, segment.ids[segment.prompt_length :])


async def test_two_conversations_of_an_episode_have_their_own_sessions_and_seeds() -> None:
    engine = ScriptedEngine([say("one"), say("two")])
    policy = byte_policy(engine)
    async with (
        Conversation(policy, rollout()) as first,
        Conversation(policy, rollout(), name="critic") as second,
    ):
        await first.ask([USER])
        await second.ask([USER])
    assert {made.session_id for made in engine.calls} == {"r0", "r0/critic"}
    assert len({made.params.seed for made in engine.calls}) == 2


async def test_an_engine_that_fails_or_samples_nothing_is_the_engines_doing() -> None:
    for answer in (fail("gone"), reply([])):
        async with talk(ScriptedEngine([answer])) as chat:
            with pytest.raises(BoundaryError) as caught:
                await chat.ask([USER])
        assert caught.value.boundary is Boundary.ENGINE


async def test_a_turn_that_takes_too_long_is_the_engines_doing() -> None:
    async with talk(ScriptedEngine([say("late", delay_s=3600.0)]), deadline_s=0.01) as chat:
        with pytest.raises(DeadlineExceeded):
            await chat.ask([USER])


async def test_a_failure_carries_the_conversation_that_it_broke_off() -> None:
    with pytest.raises(BoundaryError) as caught:
        async with talk(ScriptedEngine([say("one"), fail("gone")])) as chat:
            await chat.ask([USER])
            await chat.ask([USER])
    assert caught.value.conversation is chat
    assert len(chat.episode(Ending.lost(caught.value)).transcript) == 3


async def test_notes_stand_in_the_trace_and_in_no_prompt() -> None:
    engine = ScriptedEngine([say("one"), say("two")])
    async with talk(engine) as chat:
        await ask(chat, USER)
        chat.note({"role": "tool", "content": "a verdict"}, author="verifier")
        await ask(chat, USER)
        note = chat.transcript()[2]
    assert note["author"] == "verifier" and note["span"][0] == note["span"][1]
    assert "verdict" not in decode(engine.calls[1].prompt_ids)


async def test_a_history_that_a_client_sends_back_is_extended() -> None:
    engine = ScriptedEngine([say("one"), say("two")])
    async with talk(engine) as chat:
        await chat.sync([USER])
        turn = await chat.sync(
            [USER, {"role": "assistant", "content": "one"}, {"role": "user", "content": "more"}]
        )
        (segment,) = chat.segments()
    assert isinstance(turn, Turn) and turn.text == "two"
    assert segment.trained_tokens == len("one") + len("two") + 2


async def test_an_engine_that_does_not_release_is_noted() -> None:
    class Stuck(ScriptedEngine):
        async def release(self, session_id: str) -> None:
            raise RuntimeError("stuck")

    async with talk(Stuck([say("one")])) as chat:
        await ask(chat, USER)
    assert "stuck" in str(chat.info()["release_error"])


def test_the_markers_are_those_of_the_policys_tokenizer_and_all_known_ones_of_an_endpoint() -> None:
    of_tokens = talk(ScriptedEngine([])).markers
    assert of_tokens.plain("a <|im_end|> b </s>") == "a < |im_end|> b </s>"
    config = ChatConfig(base_url="http://host/v1", model="m")
    policy = EndpointPolicy(client=ChatClient(config, boundary=Boundary.ENGINE))
    of_endpoint = Conversation(policy, rollout()).markers
    assert of_endpoint.plain("a <|im_end|> b </s> c") == "a < |im_end|> b < /s> c"


async def test_an_episode_s_time_is_lost_to_whom_it_waited_for_and_other_timeouts_are_errors() -> (
    None
):
    waiting_for = Boundary.ENGINE

    async def late() -> Ending:
        nonlocal waiting_for
        waiting_for = Boundary.USER
        await asyncio.Event().wait()
        raise AssertionError

    async def failing() -> Ending:
        raise BoundaryError(Boundary.JUDGE, "gone")

    async def finishing() -> Ending:
        return Ending.finished()

    async def broken() -> Ending:
        raise TimeoutError("of its own")

    def named() -> Boundary:
        return waiting_for

    lost = await play_within(0.01, late, named)
    assert lost.label == "lost:user" and "more than 0.01 s" in (lost.error or "")
    assert (await play_within(60, failing, named)).label == "lost:judge"
    assert await play_within(60, finishing, named) == Ending.finished()
    with pytest.raises(TimeoutError, match="of its own"):
        await play_within(60, broken, named)


async def test_a_turn_that_was_aborted_before_its_first_token_has_no_weights_and_no_cache() -> None:
    chat = talk(ScriptedEngine([say("hi"), reply([], finish="abort")]))
    await ask(chat, USER)
    await ask(chat, {"role": "user", "content": "go on"})
    assert [turn.finish for turn in chat.turns] == ["stop", "abort"]
    assert chat.info()["weight_versions"] == [0] and len(chat.info()["cached"]) == 1

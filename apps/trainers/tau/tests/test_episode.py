import asyncio
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from taubench import STOP, Environment, Task
from taubench.prompts import prompt_view
from turnwise.engine.scripted import ScriptedEngine, fail, reply
from turnwise.episode import Episode
from turnwise.replay import Replay
from turnwise.rollout import derive_seed
from turnwise.testing import byte_policy, byte_tokenizer, call, decode, say

from apps.trainers.tau.options import TauOptions
from apps.trainers.tau.tests import playing
from apps.trainers.tau.tests.playing import (
    OFFLINE,
    Customer,
    cancel_task,
    right_call,
    rollout,
    scripted,
)

TASK = cancel_task()
DETAILS = call("get_order_details", order_id=TASK.actions[0].kwargs["order_id"])


async def play(
    *turns: Any, task: Task = TASK, seed: int = 5, limits: Any = None, **options: Any
) -> tuple[Episode, ScriptedEngine]:
    policy, engine = scripted(*turns, **(limits or {}))
    return await playing.play(policy, rollout(task, seed=seed), **options), engine


async def test_the_right_write_earns_the_reward() -> None:
    episode, engine = await play(DETAILS, right_call(TASK), "Done.")
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    assert episode.info["r_actions"] and episode.info["diff"] == []
    assert episode.metrics["turns"] == 3 and episode.metrics["tool_calls"] == 2
    assert episode.info["user"] == "offline-1(opening=everything,patience=1)"
    assert engine.released == ["r1"]


async def test_a_wrong_write_earns_nothing_and_shows_the_difference() -> None:
    episode, _ = await play("Done.")
    assert (episode.ending.label, episode.score) == ("finished", 0.0)
    assert {difference["field"] for difference in episode.info["diff"]} >= {"status"}


async def test_the_prompt_of_every_turn_is_the_recorded_prefix_and_samples_are_verbatim() -> None:
    turns = [say(DETAILS, logprobs=None), say(right_call(TASK)), say("Done.")]
    episode, engine = await play(*turns)
    (sample,) = episode.segments
    assert len(engine.calls) == 3
    for made, turn in zip(engine.calls, turns, strict=True):
        size = len(made.prompt_ids)
        np.testing.assert_array_equal(sample.ids[:size], made.prompt_ids)
        np.testing.assert_array_equal(sample.ids[size : size + len(turn.ids)], turn.ids)
    assert sample.trained_tokens == sum(len(turn.ids) for turn in turns)
    rendered = byte_tokenizer().apply_chat_template(
        [
            {key: message[key] for key in ("role", "content", "tool_calls") if key in message}
            for message in episode.transcript[:-1]
        ],
        tools=prompt_view("compact").tools("retail"),
        tokenize=False,
    )
    assert decode(sample.ids) == rendered.removesuffix("\n")


async def test_the_transcript_says_who_wrote_what_and_where_its_tokens_are() -> None:
    episode, _ = await play(DETAILS, "Done.")
    authors = [message["author"] for message in episode.transcript]
    customer = "offline-1(opening=everything,patience=1)"
    assert authors == ["prompt", customer, "policy", "tool:get_order_details", "policy", customer]
    for message in episode.transcript[:-1]:
        start, stop = message["span"]
        assert message["content"] in decode(episode.segments[message["segment"]].ids[start:stop])
    assert episode.transcript[2]["text"] == DETAILS
    last = episode.transcript[-1]
    assert (last["content"], last["span"], last["segment"]) == (STOP, None, None)
    json.dumps([*episode.transcript, episode.info])


async def test_a_turn_is_drawn_with_a_seed_of_the_rollout_and_the_turn_alone() -> None:
    _, engine = await play(DETAILS, "Done.", seed=11)
    assert [made.params.seed for made in engine.calls] == [
        derive_seed(11, "turn", 0),
        derive_seed(11, "turn", 1),
    ]


async def test_too_many_turns_stop_the_episode_without_reward() -> None:
    episode, engine = await play(right_call(TASK), DETAILS, DETAILS, max_turns=2)
    assert (episode.ending.label, episode.score) == ("stopped:turns", 0.0)
    assert len(engine.calls) == 2 and engine.released == ["r1"]
    assert episode.info["r_actions"]


async def test_a_turn_without_end_stops_by_tokens() -> None:
    episode, _ = await play("x" * 600, limits={"max_new_tokens": 100})
    assert (episode.ending.label, episode.score) == ("stopped:tokens", 0.0)
    assert episode.metrics["sampled_tokens"] == 100
    assert episode.segments[0].trained_tokens == 100


async def test_a_turn_that_fills_the_context_stops_by_context() -> None:
    first, _ = await play("Done.")
    room = first.segments[0].prompt_length + 10
    episode, _ = await play("x" * 600, limits={"context": room})
    assert (episode.ending.label, episode.score) == ("stopped:context", 0.0)
    assert len(episode.segments[0].ids) == room


async def test_an_observation_that_does_not_fit_stops_by_context() -> None:
    first, _ = await play("Done.")
    room = first.segments[0].prompt_length + len(say(DETAILS).ids) + 20
    episode, _ = await play(DETAILS, "Done.", limits={"context": room})
    assert (episode.ending.label, episode.score) == ("stopped:context", 0.0)
    assert episode.transcript[-1]["role"] == "tool" and episode.transcript[-1]["span"] is None


async def test_a_prompt_that_does_not_fit_stops_before_the_engine_is_asked() -> None:
    episode, engine = await play("Done.", limits={"context": 50})
    assert (episode.ending.label, episode.segments) == ("stopped:context", ())
    assert not engine.calls


async def test_unreadable_calls_in_a_row_stop_by_format() -> None:
    broken = "<tool_call>\n{not json}\n</tool_call>"
    episode, _ = await play(broken, broken, "Done.", max_format_errors=2)
    assert (episode.ending.label, episode.score) == ("stopped:format", 0.0)
    assert episode.metrics["parse_errors"] == episode.metrics["parse_errors/bad_json"] == 2


async def test_the_policy_hears_what_was_wrong_and_may_go_on() -> None:
    broken = "<tool_call>\n{not json}\n</tool_call>"
    episode, _ = await play(
        broken, right_call(TASK), broken, "Done.", max_format_errors=2, max_turns=9
    )
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    assert "not valid JSON" in episode.transcript[3]["content"]


async def test_a_tool_that_does_not_exist_is_answered_by_the_environment() -> None:
    episode, _ = await play(call("refund", amount=3), right_call(TASK), "Done.")
    assert episode.transcript[3]["content"] == "Unknown action refund"
    assert episode.score == 1.0 and episode.metrics["parse_errors/unknown_tool"] == 1


@pytest.mark.parametrize(
    ("rule", "score", "dropped"),
    [("first", 0.0, ["not first"]), ("all", 1.0, []), ("error", 0.0, ["several calls"] * 2)],
)
async def test_of_several_calls_none_vanishes_silently(
    rule: Any, score: float, dropped: list[str]
) -> None:
    episode, engine = await play(f"{DETAILS}\n{right_call(TASK)}", "Done.", several_calls=rule)
    assert episode.score == score
    assert [left["reason"] for left in episode.info["dropped_calls"]] == dropped
    assert episode.metrics["dropped_calls"] == len(dropped)
    answers = [m for m in episode.transcript if m["role"] == "tool"]
    assert len(answers) == (2 if rule == "all" else 1)
    assert len(engine.calls) == 2


async def test_calls_after_the_end_of_the_conversation_are_on_record() -> None:
    transfer = call("transfer_to_human_agents", summary="angry")
    episode, _ = await play(f"{transfer}\n{DETAILS}", several_calls="all")
    assert (episode.ending.label, episode.score) == ("finished", 0.0)
    assert [left["reason"] for left in episode.info["dropped_calls"]] == ["episode over"]


async def test_an_engine_that_fails_never_yields_a_reward() -> None:
    episode, engine = await play(right_call(TASK), fail("out of memory"))
    assert (episode.ending.label, episode.score) == ("lost:engine", None)
    assert "out of memory" in str(episode.ending.error)
    assert len(episode.segments) == 1 and engine.released == ["r1"]


async def test_an_engine_that_is_too_slow_is_lost() -> None:
    episode, engine = await play(say("Done.", delay_s=60), engine_deadline_s=0.02)
    assert (episode.ending.label, episode.score) == ("lost:engine", None)
    assert "deadline" in str(episode.ending.error) and engine.released == ["r1"]


@pytest.mark.parametrize("token", [10**6, -1])
async def test_ids_outside_of_the_vocabulary_are_the_engines_fault(token: int) -> None:
    episode, _ = await play(reply([token, byte_tokenizer().eos_token_id]))
    assert (episode.ending.label, episode.score) == ("lost:engine", None)


@pytest.mark.parametrize("answer", [ConnectionError("gone"), 3.0, None])
async def test_a_customer_that_fails_never_yields_a_reward(answer: Any) -> None:
    made = Customer(answers=[answer])
    episode, engine = await play(
        right_call(TASK), "Done.", make_user=lambda: made, user_deadline_s=0.02
    )
    assert (episode.ending.label, episode.score) == ("lost:user", None)
    assert str(episode.ending.error).startswith("deadline: ") == isinstance(answer, float)
    assert engine.released == ["r1"]


@pytest.mark.parametrize("opening", [ConnectionError("gone"), 3.0, None])
async def test_a_customer_that_never_speaks_is_lost(opening: Any) -> None:
    made = Customer(opening=opening)
    episode, engine = await play("Done.", make_user=lambda: made, user_deadline_s=0.02)
    assert (episode.ending.label, episode.segments) == ("lost:user", ())
    assert str(episode.ending.error).startswith("deadline: ") == isinstance(opening, float)
    assert not engine.calls and engine.released == ["r1"]


async def test_a_customer_that_cannot_be_made_is_lost() -> None:
    def user() -> Any:
        raise OSError("no endpoint")

    episode, _ = await play("Done.", make_user=user)
    assert episode.ending.label == "lost:user" and episode.info["user"] == ""


class _BrokenEnvironment(Environment):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("a bug")


async def test_a_bug_of_the_environment_is_not_the_policys() -> None:
    episode, _ = await play(DETAILS, make_environment=_BrokenEnvironment)
    assert (episode.ending.label, episode.score) == ("lost:environment", None)


async def test_the_customers_words_reach_the_policy() -> None:
    made = Customer(answers=["Yes, please.", STOP])
    episode, engine = await play("Shall I?", right_call(TASK), "Done.", make_user=lambda: made)
    assert episode.score == 1.0 and episode.metrics["user_replies"] == 2
    assert decode(engine.calls[1].prompt_ids).endswith(
        "<|im_start|>user\nYes, please.<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_words_of_the_customer_that_do_not_fit_are_noted_as_the_customers() -> None:
    made = Customer(answers=["x" * 8000])
    episode, _ = await play("Shall I?", make_user=lambda: made, limits={"context": 6000})
    assert (episode.ending.label, episode.score) == ("stopped:context", 0.0)
    assert episode.info["overflow_by"] == "customer"
    assert episode.metrics["overflow/user"] == 1
    own, _ = await play(
        reply([65] * 2000, finish="length"),
        limits={"context": 6000, "max_new_tokens": 8192},
    )
    assert own.ending.label == "stopped:context"
    assert own.info["overflow_by"] == "" and "overflow/user" not in own.metrics


async def test_a_turn_given_back_unfinished_cancels_the_episode() -> None:
    episode, _ = await play(reply([1, 2, 3], finish="abort"))
    assert (episode.ending.label, episode.score) == ("cancelled", None)


async def test_cancellation_passes_through_and_frees_the_engine() -> None:
    policy, engine = scripted(say("Done.", delay_s=60))
    episode = asyncio.create_task(playing.play(policy, rollout(TASK)))
    while not engine.calls:
        await asyncio.sleep(0)
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    assert engine.released == ["r1"]


class _UnreleasableEngine(ScriptedEngine):
    async def release(self, session_id: str) -> None:
        raise RuntimeError("stuck")


async def test_a_release_that_fails_is_noted_and_costs_no_score() -> None:
    engine = _UnreleasableEngine([say(right_call(TASK)), say("Done.")])
    episode = await playing.play(byte_policy(engine), rollout(TASK))
    assert episode.score == 1.0 and "stuck" in episode.info["release_error"]


class _AnyText(ScriptedEngine):
    def __init__(self, ids: list[int]) -> None:
        super().__init__(lambda prompt: reply([*ids, byte_tokenizer().eos_token_id]))


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.lists(st.integers(0, len(byte_tokenizer()) - 1), max_size=30),
        st.text(max_size=30).map(lambda text: list(say(f"<tool_call>\n{text}").ids[:-1])),
        st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=2).map(
            lambda arguments: list(say(call("get_order_details", **arguments)).ids[:-1])
        ),
    )
)
def test_no_text_of_a_model_raises(ids: list[int]) -> None:
    policy = byte_policy(_AnyText(ids), context=4096)
    episode = asyncio.run(playing.play(policy, rollout(TASK), max_turns=3))
    assert episode.ending.by_policy


async def test_many_episodes_at_once_give_what_they_give_alone() -> None:
    async def one(seed: int) -> tuple[str, list[int]]:
        episode, engine = await play(DETAILS, right_call(TASK), "Done.", seed=seed)
        return episode.ending.label, [int(made.params.seed or 0) for made in engine.calls]

    together = await asyncio.gather(*(one(seed) for seed in range(20)))
    assert together == [await one(seed) for seed in range(20)]


@pytest.mark.parametrize("name", ["max_turns", "max_format_errors", "user_deadline_s"])
def test_a_limit_of_nothing_is_refused_by_name(name: str) -> None:
    nothing: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=name.replace("_", "-")):
        TauOptions(user=OFFLINE, **nothing)


async def test_an_interrupted_episode_goes_on_with_what_the_user_said() -> None:
    turns = ["Shall I?", right_call(TASK), "Done."]
    whole, _ = await _recorded(Replay(), *turns)
    replay = Replay()
    broken, _ = await _recorded(replay, *turns[:2], fail("gone"))
    assert broken.ending.label == "lost:engine"
    again, _ = await _recorded(Replay(json.loads(json.dumps(replay.calls))), *turns)
    assert again.transcript == whole.transcript and again.score == 1.0
    np.testing.assert_array_equal(again.segments[0].ids, whole.segments[0].ids)


async def test_a_user_is_not_asked_again_for_what_it_has_said() -> None:
    replay = Replay()
    made = Customer(answers=["Yes, please.", STOP])
    await _recorded(replay, "Shall I?", right_call(TASK), "Done.", make_user=lambda: made)
    silent = Customer(opening=ConnectionError("asked"))
    again, _ = await _recorded(
        Replay(replay.calls), "Shall I?", right_call(TASK), "Done.", make_user=lambda: silent
    )
    assert (again.ending.label, again.score) == ("finished", 1.0)


async def test_an_agent_that_says_something_else_than_recorded_is_lost_to_the_environment() -> None:
    replay = Replay()
    await _recorded(replay, "Shall I?", "Done.")
    other, _ = await _recorded(Replay(replay.calls), "May I?", "Done.")
    assert other.ending.label == "lost:environment" and "May I?" in str(other.ending.error)


async def test_a_user_without_a_way_to_resume_is_lost() -> None:
    replay = Replay()
    made = Customer(answers=["Yes, please."])
    await _recorded(replay, "Shall I?", fail("gone"), make_user=lambda: made)
    episode, _ = await _recorded(
        Replay(replay.calls), "Shall I?", "Done.", make_user=lambda: Customer(answers=[STOP])
    )
    assert episode.ending.label == "lost:user" and "no resume" in str(episode.ending.error)


async def _recorded(replay: Replay, *turns: Any, **options: Any) -> tuple[Episode, ScriptedEngine]:
    policy, engine = scripted(*turns)
    return await playing.play(policy, rollout(TASK, replay=replay), **options), engine

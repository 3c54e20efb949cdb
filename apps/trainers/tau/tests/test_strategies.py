"""Whole episodes of each strategy: what is rewarded, what is trained, what is answered."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from taubench import STOP
from taubench.strategies import STRATEGIES
from turnwise.episode import Episode
from turnwise.testing import ScriptedEngine, call, decode, say

from apps.trainers.tau.tests import playing
from apps.trainers.tau.tests.playing import Customer, cancel_task, right_call, rollout, scripted

TASK = cancel_task()
(WRITE,) = TASK.actions


def action(name: str, /, **arguments: Any) -> str:
    return f"Action: {json.dumps({'name': name, 'arguments': arguments})}"


async def play(strategy: str, *turns: Any, **options: Any) -> tuple[Episode, ScriptedEngine]:
    policy, engine = scripted(*turns, context=32768)
    options = {"agent_strategy": strategy, **options}
    return await playing.play(policy, rollout(TASK), **options), engine


def turns_of(strategy: str) -> list[str]:
    if strategy in ("tool-calling", "few-shot"):
        return [right_call(TASK), "Done."]
    turns = [action(WRITE.name, **WRITE.kwargs), action("respond", content="Done.")]
    return [
        f"Thought: the order is named.\n{turn}" if strategy == "react" else turn for turn in turns
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_strategy_earns_the_reward_and_trains_what_was_sampled(strategy: str) -> None:
    turns = [say(text, logprobs=None) for text in turns_of(strategy)]
    episode, engine = await play(strategy, *turns)
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    (sample,) = episode.segments
    for made, turn in zip(engine.calls, turns, strict=True):
        size = len(made.prompt_ids)
        np.testing.assert_array_equal(sample.ids[:size], made.prompt_ids)
        np.testing.assert_array_equal(sample.ids[size : size + len(turn.ids)], turn.ids)
    assert sample.trained_tokens == sum(len(turn.ids) for turn in turns)
    assert episode.metrics["tool_calls"] == 1
    assert episode.metrics["parse_errors"] == 0
    called = [bool(message.get("tool_calls")) for message in episode.transcript[2::2]]
    assert called == [strategy in ("tool-calling", "few-shot"), False]
    base = "compact" if strategy == "tool-calling" else f"{strategy}:compact"
    assert episode.info["prompt"] == base
    json.dumps([*episode.transcript, episode.info])


async def test_the_default_prompt_is_what_it_was() -> None:
    _, named = await play("tool-calling", *turns_of("tool-calling"))
    policy, default = scripted(*turns_of("tool-calling"), context=32768)
    await playing.play(policy, rollout(TASK))
    for left, right in zip(named.calls, default.calls, strict=True):
        np.testing.assert_array_equal(left.prompt_ids, right.prompt_ids)


@pytest.mark.parametrize("strategy", ["act", "react"])
async def test_a_text_strategy_gives_the_template_no_tools_and_results_as_observations(
    strategy: str,
) -> None:
    episode, engine = await play(strategy, *turns_of(strategy))
    prompt = decode(engine.calls[1].prompt_ids)
    assert "find_user_id_by_email find_user_id_by_name_zip" not in prompt, (
        "how the template lists tools"
    )
    assert "<|im_start|>user\nObservation: {" in prompt
    assert "<tool_response>" not in prompt
    result = episode.transcript[3]
    assert (result["role"], result["author"]) == ("user", f"tool:{WRITE.name}")


async def test_the_thought_is_trained_and_nobody_hears_it() -> None:
    heard: list[object] = []

    class Listening(Customer):
        async def reply(self, agent_text: object) -> Any:
            heard.append(agent_text)
            return await super().reply(agent_text)

    turns = ["Thought: SECRET\n" + action("respond", content="Shall I?"), *turns_of("react")]
    answers = ["Yes.", STOP]
    episode, _ = await play("react", *turns, make_user=lambda: Listening(answers=answers))
    assert heard == ["Shall I?", "Done."]
    assert "SECRET" in episode.transcript[2]["content"]
    assert episode.score == 1.0


@pytest.mark.parametrize("strategy", ["act", "react"])
@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        ("Which order is it?", "no_action"),
        ("Action: cancel it", "not_an_object"),
        ('Action: {"name": ', "bad_json"),
        ('Action: {"arguments": {}}', "no_name"),
    ],
)
async def test_a_turn_that_cannot_be_read_is_observed_and_may_be_mended(
    strategy: str, turn: str, kind: str
) -> None:
    episode, _ = await play(strategy, turn, *turns_of(strategy))
    assert episode.score == 1.0
    assert episode.metrics[f"parse_errors/{kind}"] == 1
    assert episode.transcript[3]["content"].startswith("Observation: Error: ")


async def test_turns_that_cannot_be_read_stop_the_episode() -> None:
    episode, _ = await play("act", "a", "b", "c", "d", max_format_errors=3)
    assert (episode.ending.label, episode.score) == ("stopped:format", 0.0)


async def test_tool_calls_of_a_template_mean_nothing_to_a_text_strategy() -> None:
    episode, _ = await play("act", call(WRITE.name, **WRITE.kwargs), max_turns=1)
    assert episode.metrics["parse_errors/no_action"] == 1
    assert not episode.info["r_actions"]


@pytest.mark.parametrize(
    ("turn", "observed"),
    [
        (action("fly"), "Observation: Unknown action fly"),
        (action("respond"), "Observation: Error: respond needs content"),
        (action("respond", content=3), "Observation: Error: respond needs content"),
        ('Action: {"name": "get_order_details", "arguments": [1]}', "Observation: Error: the arg"),
        ('Action: {"name": "get_order_details"}', "Observation: Error: "),
    ],
)
async def test_a_readable_action_that_makes_no_sense_is_observed(turn: str, observed: str) -> None:
    episode, _ = await play("act", turn, *turns_of("act"))
    assert episode.transcript[3]["content"].startswith(observed)
    assert episode.score == 1.0


async def test_actions_made_up_after_the_first_are_on_record_and_not_taken() -> None:
    made_up = (
        f"{action('get_order_details', order_id='#W1')}\nObservation: {{}}\n{turns_of('act')[0]}"
    )
    episode, _ = await play("act", made_up, max_turns=1)
    assert [left["reason"] for left in episode.info["dropped_calls"]] == ["not first"]
    assert not episode.info["r_actions"]

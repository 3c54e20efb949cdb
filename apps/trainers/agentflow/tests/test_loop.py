"""The loop against scripted engines and models: what is asked, in which order, and the endings."""

from __future__ import annotations

import json

import numpy as np
import pytest
from turnwise.episode import Episode
from turnwise.judge import Verdict
from turnwise.rollout import derive_seed
from turnwise.run.traces import parse_trace, trace_row
from turnwise.testing import byte_tokenizer, decode, say

from apps.trainers.agentflow.prompts import sections
from apps.trainers.agentflow.tests.scripted import (
    CONTINUE,
    QUESTION,
    STOP,
    Judge,
    Oracle,
    Scripted,
    helpers,
    play,
    step,
)


def authors(episode: Episode) -> list[str]:
    return [message["author"] for message in episode.transcript]


async def test_a_question_is_analysed_worked_on_checked_and_answered() -> None:
    episode, engine = await play("It takes a product.", step())
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    assert authors(episode) == [
        *("prompt", "policy", "prompt", "policy"),
        *("executor", "tool:calculator", "verifier", "final"),
    ]
    assert engine.released == ["r1"]
    assert episode.task_id == "maths/1"


async def test_a_wrong_answer_scores_nothing_and_is_finished() -> None:
    episode, _ = await play("Hm.", step(), final=[r"\boxed{41}"])
    assert (episode.ending.label, episode.score) == ("finished", 0.0)


async def test_every_planner_turn_is_one_segment_sampled_verbatim() -> None:
    turns = [say("Hm.", logprobs=[-0.5, -0.25, -0.125, -1.0]), say(step()), say(step("oracle"))]
    episode, engine = await play(*turns, verifier=[CONTINUE, STOP])
    assert len(episode.segments) == len(engine.calls) == 3
    for number, (segment, call, turn) in enumerate(
        zip(episode.segments, engine.calls, turns, strict=True)
    ):
        assert segment.segment == number and {span.turn for span in segment.spans} == {number}
        np.testing.assert_array_equal(segment.ids[: segment.prompt_length], call.prompt_ids)
        np.testing.assert_array_equal(segment.ids[segment.prompt_length :], turn.ids)
        np.testing.assert_array_equal(segment.loss_mask, np.ones(len(turn.ids)))
        np.testing.assert_array_equal(segment.logprobs, np.array(turn.logprobs, np.float32))
        assert call.session_id == "r1"
    assert sum(segment.weight for segment in episode.segments) == pytest.approx(1)


async def test_every_message_lies_where_the_transcript_says() -> None:
    episode, _ = await play("Hm.", step(), step("oracle"), verifier=[CONTINUE, STOP])
    for message in episode.transcript:
        start, stop = message["span"]
        ids = episode.segments[message["segment"]].ids
        if message["author"] in ("prompt", "policy"):
            assert message["content"] in decode(ids[start:stop])
        else:
            assert start == stop == len(ids)


async def test_draws_depend_on_the_seed_and_the_place_alone() -> None:
    given = helpers(verifier=[CONTINUE, STOP])
    _, engine = await play("Hm.", step(), step(), given=given, seed=9)
    seeds = [call.params.seed for call in engine.calls]
    assert seeds == [derive_seed(9, "turn", turn) for turn in range(3)]
    assert given.executor.seeds == [derive_seed(9, "executor", turn) for turn in range(2)]  # type: ignore[attr-defined]


async def test_the_planner_sees_the_tools_as_they_are_and_the_steps_that_are_left() -> None:
    _, engine = await play("Hm.", step(), step(), verifier=[CONTINUE, STOP])
    analysis, first, second = (decode(call.prompt_ids) for call in engine.calls)
    for prompt in (analysis, first, second):
        assert "Does sums." in prompt and "Knows." in prompt
        assert "argument query (string, required, characters at most 500): The sum." in prompt
        assert "limit: Whole numbers below 7,000 alone." in prompt
    assert "## Steps left\n5\n" in analysis
    assert "## Steps left\n5, this one included" in first
    assert "## Steps left\n4, this one included" in second


async def test_the_named_tool_is_the_one_that_runs() -> None:
    calculator, oracle = Scripted("from the calculator"), Oracle("from the oracle")
    episode, _ = await play("Hm.", step("oracle"), tools=[calculator, oracle])
    assert not calculator.calls and len(oracle.calls) == 1
    assert "tool:oracle" in authors(episode)
    assert (episode.metrics["tool/oracle"], episode.metrics["tool/calculator"]) == (1, 0)


async def test_a_result_is_in_the_next_prompts_and_in_the_final_one() -> None:
    given = helpers(verifier=[CONTINUE, STOP], tools=[Scripted("the 1st", "the 2nd"), Oracle()])
    _, engine = await play("Hm.", step(), step(), given=given)
    steps = sections.read(decode(engine.calls[2].prompt_ids))["Steps so far"]
    assert '"the 1st"' in steps and '"arguments": {"query": "6*7"}' in steps
    (final,) = given.final.prompts  # type: ignore[attr-defined]
    assert '"the 1st"' in final and '"the 2nd"' in final


async def test_steps_used_up_still_give_an_answer_that_is_graded() -> None:
    episode, engine = await play("Hm.", *[step()] * 2, verifier=[CONTINUE], max_steps=2)
    assert (episode.ending.label, episode.score) == ("stopped:turns", 1.0)
    assert len(engine.calls) == 3 and authors(episode)[-1] == "final"


async def test_the_judge_sees_the_question_the_final_answer_and_the_truth() -> None:
    judge = Judge()
    await play("Hm.", step(), judge=judge, final=["my answer"])
    assert judge.asked == [(QUESTION.text, "my answer", "42")]


async def test_who_graded_and_what_was_used_is_told() -> None:
    episode, _ = await play("Hm.", step(), judge=Judge(Verdict(True, "judge")))
    assert episode.info["verdict"]["by"] == "judge" and episode.metrics["judged"] == 1
    counts = episode.metrics
    assert (counts["turns"], counts["steps"], counts["tool_calls"]) == (2, 1, 1)
    planner = counts["prompt_tokens"] + counts["sampled_tokens"]
    assert counts["total_tokens"] == planner + 3 * 15


async def test_a_trace_tells_prompt_and_planner_apart_whatever_the_tools_said() -> None:
    """A result that stands in the next prompt is the prompt's there, and no tool's."""
    tools = [Scripted("calculator"), Oracle("the sum")]
    episode, _ = await play("Hm.", step(), step("oracle"), verifier=[CONTINUE, STOP], tools=tools)
    row = json.loads(
        json.dumps(trace_row(episode, byte_tokenizer(), step=0, kind="eval", why="best"))
    )
    trace = parse_trace(row)
    assert len(trace.segments) == 3 and trace.info["tools"] == {"calculator": {}, "oracle": {}}
    for segment in trace.segments:
        authors = [author for author, _, _ in segment.authors]
        assert authors == ["template", "user", "template", "policy"]
        assert segment.authors[-1] == ("policy", segment.prompt_length, len(segment.ids))

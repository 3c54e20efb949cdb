"""How episodes end, who is to blame, and that every one is accounted for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from turnwise.config import ConfigError
from turnwise.engine.scripted import Reply, fail, reply
from turnwise.episode import Boundary, BoundaryError, Episode
from turnwise.group import make_groups
from turnwise.judge import Verdict
from turnwise.ledger import Ledger
from turnwise.rollout import Rollout, run_rollouts
from turnwise.testing import decode, say

from apps.trainers.agentflow.episode import run_episode
from apps.trainers.agentflow.helpers import Helpers
from apps.trainers.agentflow.tests.scripted import (
    CONTINUE,
    Judge,
    Oracle,
    Scripted,
    helpers,
    options,
    play,
    policy,
    rollout,
    step,
)

GONE = BoundaryError(Boundary.ENGINE, "gone")
NONSENSE = "I do not know what to do."


def cut(text: str) -> Reply:
    """A turn of that text that ends for its length."""
    return reply(say(text).ids[:-1], finish="length")


LOSSES: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "engine at the analysis": ([fail("gone")], {}, "lost:engine"),
    "engine at a step": (["Hm.", fail("gone")], {}, "lost:engine"),
    "executor": (["Hm.", step()], {"executor": [GONE]}, "lost:engine"),
    "verifier": (["Hm.", step()], {"verifier": [GONE]}, "lost:engine"),
    "final": (["Hm.", step()], {"final": [GONE]}, "lost:engine"),
    "a bug of a helper": (["Hm.", step()], {"executor": [KeyError("choices")]}, "lost:engine"),
    "a helper at a boundary of its own": (
        ["Hm.", step()],
        {"final": [BoundaryError(Boundary.JUDGE, "gone")]},
        "lost:judge",
    ),
    "a tool": (["Hm.", step()], {"tools": [Scripted(ValueError("bug"))]}, "lost:tool_server"),
    "a tool's sandbox": (
        ["Hm.", step()],
        {"tools": [Scripted(BoundaryError(Boundary.SANDBOX, "no walls"))]},
        "lost:sandbox",
    ),
    "a tool's model": (["Hm.", step()], {"tools": [Scripted(GONE)]}, "lost:engine"),
    "the judge": (["Hm.", step()], {"judge": Judge(RuntimeError("bug"))}, "lost:judge"),
    "a judge that can't tell": (
        ["Hm.", step()],
        {"judge": Judge(Verdict(None, "judge", error="no verdict"))},
        "lost:judge",
    ),
    "wall clock at a helper": (
        ["Hm.", step()],
        {"executor": [60.0], "wall_s": 0.05},
        "lost:engine",
    ),
    "wall clock at a tool": (
        ["Hm.", step()],
        {"tools": [Scripted(60.0)], "wall_s": 0.05},
        "lost:tool_server",
    ),
    "wall clock at the judge": (
        ["Hm.", step()],
        {"judge": Judge(60.0), "wall_s": 0.05},
        "lost:judge",
    ),
    "deadline of a turn": (
        ["Hm.", say(step(), delay_s=60)],
        {"engine_deadline_s": 0.05},
        "lost:engine",
    ),
    "a question without room": (
        ["Hm."],
        {"limits": {"max_context_tokens": 200}},
        "lost:environment",
    ),
    "an engine that samples nothing": (["Hm.", reply([], finish="stop")], {}, "lost:engine"),
}


@pytest.mark.parametrize(("turns", "options", "label"), LOSSES.values(), ids=LOSSES)
async def test_a_failure_of_a_service_is_lost_at_its_boundary_and_never_scored(
    turns: list[Any], options: dict[str, Any], label: str
) -> None:
    episode, engine = await play(*turns, **options)
    assert (episode.ending.label, episode.score) == (label, None)
    assert episode.ending.error
    assert engine.released == ["r1"]


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_turn_given_back_unfinished_cancels_the_episode(place: int) -> None:
    turns: list[Any] = ["Hm.", step(), step()]
    turns[place] = reply(say("Justifi").ids[:-1], finish="abort")
    episode, engine = await play(*turns[: place + 1], verifier=[CONTINUE])
    assert (episode.ending.label, episode.score) == ("cancelled", None)
    assert len(engine.calls) == len(episode.segments) == place + 1
    assert episode.segments[-1].finish == "abort"


async def test_a_turn_given_back_before_its_first_token_is_in_no_segment() -> None:
    episode, _ = await play("Hm.", reply([], finish="abort"))
    assert episode.ending.label == "cancelled" and len(episode.segments) == 1
    assert episode.transcript[-1]["segment"] is None and episode.transcript[-1]["span"] is None


async def test_cancellation_passes_through_and_the_engine_is_told() -> None:
    made, engine = policy("Hm.", step())
    given = helpers(executor=[60.0])
    task = asyncio.create_task(run_episode(rollout(), made, given, options()))
    while len(engine.calls) < 2:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.released == ["r1"]


async def test_retry_shows_the_error_and_takes_no_step() -> None:
    episode, engine = await play("Hm.", NONSENSE, step("abacus"), step())
    assert (episode.ending.label, episode.score) == ("finished", 1.0)
    second, third = (decode(call.prompt_ids) for call in engine.calls[2:])
    assert "## Problem with the last answer\nthe section Justification is missing" in second
    assert "there is no tool 'abacus', only calculator, oracle" in third
    assert "5, this one included" in third
    counts = episode.metrics
    assert (counts["steps"], counts["retries"], counts["malformed"]) == (1, 2, 2)
    assert (counts["malformed/missing_section"], counts["malformed/unknown_tool"]) == (1, 1)


async def test_retries_are_bounded_for_the_whole_episode() -> None:
    turns = ["Hm.", NONSENSE, step(), NONSENSE, NONSENSE]
    episode, engine = await play(*turns, verifier=[CONTINUE], max_retries=2)
    assert (episode.ending.label, episode.score) == ("stopped:format", 0.0)
    assert len(engine.calls) == len(episode.segments) == 5


async def test_stop_ends_the_episode_at_the_first_unreadable_step() -> None:
    given = helpers()
    episode, _ = await play("Hm.", NONSENSE, given=given, on_malformed="stop")
    assert (episode.ending.label, episode.score) == ("stopped:format", 0.0)
    assert given.judge.asked == [] and given.final.prompts == []  # type: ignore[attr-defined]


async def test_penalty_spends_the_step_and_lowers_the_score() -> None:
    episode, engine = await play(
        "Hm.", NONSENSE, step(), on_malformed="penalty", malformed_penalty=0.25
    )
    assert (episode.ending.label, episode.score) == ("finished", 0.75)
    shown = decode(engine.calls[2].prompt_ids)
    assert "The step could not be read: the section Justification is missing" in shown
    assert "4, this one included" in shown
    assert episode.metrics["steps"] == 2


async def test_penalties_never_make_a_score_negative() -> None:
    options: dict[str, Any] = {"on_malformed": "penalty", "malformed_penalty": 0.9}
    episode, _ = await play("Hm.", NONSENSE, NONSENSE, step(), **options)
    assert episode.score == 0.0
    wrong, _ = await play("Hm.", NONSENSE, step(), final=["41"], **options)
    assert wrong.score == 0.0


async def test_a_step_cut_for_its_length_is_malformed_even_if_it_could_be_read() -> None:
    episode, _ = await play("Hm.", cut(step()), step())
    assert episode.score == 1.0
    assert (episode.metrics["malformed/cut"], episode.metrics["cut_turns"]) == (1, 1)


async def test_an_analysis_cut_for_its_length_is_used_as_it_is_and_counted() -> None:
    episode, engine = await play(cut("Half an anal"), step())
    assert "## Analysis\nHalf an anal\n" in decode(engine.calls[1].prompt_ids)
    assert episode.ending.label == "finished" and episode.metrics["cut_turns"] == 1


async def test_tokens_of_all_models_count_and_the_answer_is_still_written() -> None:
    steps = [step()] * 9
    free, engine = await play("Hm.", *steps, verifier=[CONTINUE], max_steps=9)
    planner = len(engine.calls[0].prompt_ids) + len(say("Hm.").ids)
    first = len(engine.calls[1].prompt_ids) + len(say(step()).ids)
    helpers = 2 * 15
    # The planner alone has a token less than that after the first step.
    episode, engine = await play(
        "Hm.",
        *steps,
        verifier=[CONTINUE],
        max_steps=9,
        max_total_tokens=planner + first + helpers,
    )
    assert free.ending.label == "stopped:turns"
    assert (episode.ending.label, episode.score) == ("stopped:tokens", 1.0)
    assert len(engine.calls) == 2 and episode.transcript[-1]["author"] == "final"


async def test_a_memory_too_long_for_the_context_ends_the_steps_and_is_graded() -> None:
    tools = [Scripted("7" * 3_000), Oracle()]
    episode, engine = await play(
        "Hm.", step(), verifier=[CONTINUE], tools=tools, limits={"max_context_tokens": 2_000}
    )
    assert (episode.ending.label, episode.score) == ("stopped:context", 1.0)
    assert len(engine.calls) == 2


async def test_a_command_that_can_not_be_read_is_asked_for_again_with_the_error() -> None:
    given = helpers(executor=["run it", '{"query": "6*7"}'])
    episode, _ = await play("Hm.", step(), given=given)
    assert episode.score == 1.0
    first, second = given.executor.prompts  # type: ignore[attr-defined]
    assert "Problem with the last answer" not in first
    assert "## Problem with the last answer\nneither a JSON object nor one call" in second
    assert episode.metrics["executor_malformed/not_a_command"] == 1


async def test_an_executor_that_gives_no_command_fails_the_step_and_the_planner_sees_it() -> None:
    tool = Scripted()
    episode, engine = await play(
        "Hm.", step(), step(), executor=["run it"], verifier=[CONTINUE], tools=[tool],
        max_steps=2,
    )  # fmt: skip
    assert not tool.calls and episode.ending.label == "stopped:turns"
    shown = decode(engine.calls[2].prompt_ids)
    assert '"failed": "no_call"' in shown and "No call was made" in shown
    assert episode.metrics["executor_malformed"] == 4 and episode.metrics["malformed"] == 0


async def test_a_verdict_that_can_not_be_read_means_go_on_and_is_counted() -> None:
    episode, engine = await play("Hm.", step(), step(), verifier=["Looks good, stop."], max_steps=2)
    assert episode.ending.label == "stopped:turns" and len(engine.calls) == 3
    assert episode.metrics["verifier_malformed"] == 2


async def test_every_rollout_is_accounted_for_and_the_lost_ones_move_no_baseline() -> None:
    """One group: three right, one wrong, one lost to a tool, one cancelled, one badly formed."""
    scripts: list[tuple[list[Any], Helpers]] = [
        *([["Hm.", step()], helpers()] for _ in range(3)),  # type: ignore[list-item]
        (["Hm.", step()], helpers(final=["41"])),
        (["Hm.", step()], helpers(tools=[Scripted(OSError("down"))])),
        ([reply([], finish="abort")], helpers()),
        (["Hm.", NONSENSE], helpers()),
    ]
    tasks = [
        Rollout(
            task=(turns, given), task_id="maths/1", rollout_id=f"r{place}", group_id="g", seed=1
        )
        for place, (turns, given) in enumerate(scripts)
    ]
    ledger = Ledger()

    async def run(one: Rollout[tuple[list[Any], Helpers]]) -> Episode:
        turns, given = one.task
        asked = rollout(rollout_id=one.rollout_id, group_id=one.group_id, seed=one.seed)
        return await run_episode(asked, policy(*turns)[0], given, options(on_malformed="stop"))

    episodes = await run_rollouts(tasks, run, ledger=ledger, concurrency=4)
    ledger.check()
    assert ledger.as_dict() == {
        "started": 7,
        "finished": 4,
        "stopped": {"format": 1},
        "lost": {"tool_server": 1},
        "cancelled": 1,
    }
    (group,) = make_groups(episodes, std_normalization=False)
    scored = [advantage for advantage in group.advantages_G if advantage == advantage]
    assert scored == pytest.approx([0.4, 0.4, 0.4, -0.6, -0.6])


@pytest.mark.parametrize("name", ["max_steps", "max_total_tokens", "wall_s", "engine_deadline_s"])
def test_a_budget_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name.replace('_', '-')}: .*greater than"):
        options(**{name: 0})


async def test_an_answer_of_a_helper_that_was_cut_is_used_and_counted() -> None:
    given = helpers(verifier=["Conclusion: STOP"])
    given.final.finish = "length"  # type: ignore[attr-defined]
    episode, _ = await play("Hm.", step(), given=given)
    assert episode.score == 1.0
    assert (episode.metrics["helper_cut"], episode.metrics["helper_cut/final"]) == (1, 1)

"""Each ending of an episode of τ²-bench once, and whose doing it is."""

from __future__ import annotations

from typing import Any

import pytest
from taubench.tau2 import GREETING, Termination, evaluate, load_tasks, messages_from_json
from taubench.tau2.users import write_call
from turnwise.episode import Boundary, BoundaryError
from turnwise.judge import AssertionJudge
from turnwise.testing import call, fail, reply, say
from turnwise.testing.tokens import encode

from apps.trainers.tau.tests_tau2.playing import (
    STOP,
    Customer,
    Opinion,
    a_task,
    play,
    reference,
    solo_task,
)

CREATE = a_task("mock", "create_task_1")
SOLO = solo_task()
DONE = call("done")


def judged() -> Any:
    """A retail task whose reward hangs on NL assertions alone once its reference is played."""
    for task in load_tasks("retail", "base", "v1.0"):
        criteria = task.criteria
        if criteria and criteria.nl_assertions and "NL_ASSERTION" in criteria.basis:
            if criteria.actions and all(one.side == "assistant" for one in criteria.actions):
                return task
    raise AssertionError("there is none")


async def test_the_reference_earns_the_reward_and_the_greeting_comes_first() -> None:
    customer = Customer(["Make a task.", f"Thanks. {STOP}"])
    episode = await play(CREATE, [*reference(CREATE), "It is done."], customer=customer)
    assert (episode.ending.kind, episode.score) == ("finished", 1.0)
    said = [(one["role"], one["content"]) for one in episode.transcript]
    assert said[1] == ("assistant", GREETING) and said[2] == ("user", "Make a task.")
    assert customer.heard == ["It is done."]
    assert (episode.info["user"], episode.info["termination"]) == ("customer", "user_stop")
    assert episode.info["task"] == CREATE.key
    (segment,) = episode.segments
    assert segment.loss_mask.sum() == episode.metrics["sampled_tokens"] > 0
    # Greeting, opening, call, answer, words, stop, less the greeting that nobody counts.
    assert episode.metrics["steps"] == 5 and episode.metrics["user_replies"] == 2


async def test_the_trajectory_is_graded_again_to_the_same_score() -> None:
    for turns in ([*reference(CREATE), "Done."], ["No."]):
        episode = await play(CREATE, turns, ["Make a task.", STOP])
        history = messages_from_json(episode.info["trajectory"])
        again = evaluate(CREATE, history, Termination(episode.info["termination"]))
        assert again.reward == episode.score


async def test_doing_something_else_earns_nothing_and_says_what_is_missed() -> None:
    episode = await play(CREATE, ["I will not."], ["Make a task.", STOP])
    assert (episode.ending.kind, episode.score) == ("finished", 0.0)
    assert episode.info["missed"] and episode.metrics["part/DB"] == 0.0


async def test_solo_needs_no_user_and_the_call_done_ends_it() -> None:
    episode = await play(SOLO, [*reference(SOLO), DONE], solo=True)
    assert (episode.ending.kind, episode.score) == ("finished", 1.0)
    assert episode.info["termination"] == "agent_stop" and episode.info["user"] == ""
    assert (await play(SOLO, [DONE], solo=True)).score == 0.0


async def test_all_calls_of_a_turn_run_in_order_unless_told_otherwise() -> None:
    both = "\n".join([*reference(CREATE), call("get_users")])
    episode = await play(CREATE, [both, "Done."], ["Make a task.", STOP])
    assert episode.score == 1.0 and episode.metrics["dropped_calls"] == 0
    answers = [one["name"] for one in episode.transcript if one["role"] == "tool"]
    assert answers == ["create_task", "get_users"]
    other = "\n".join([call("get_users"), *reference(CREATE)])
    first = await play(CREATE, [other, "Done."], ["Do it.", STOP], several_calls="first")
    assert first.score == 0.0 and first.metrics["dropped_calls"] == 1


async def test_words_beside_a_call_reach_nobody() -> None:
    customer = Customer(["Make a task.", STOP])
    turn = f"I make it.\n{reference(CREATE)[0]}"
    episode = await play(CREATE, [turn, "Done."], customer=customer)
    assert episode.score == 1.0 and customer.heard == ["Done."]


@pytest.mark.parametrize(
    ("turns", "options", "ending", "termination"),
    [
        ([call("get_users")] * 3, {"max_steps": 4}, "stopped:turns", "max_steps"),
        ([call("get_users")] * 3, {"max_turns": 2}, "stopped:turns", None),
        ([call("nothing")] * 3, {"max_errors": 2}, "stopped:format", "too_many_errors"),
        (["   "], {}, "stopped:format", "agent_error"),
        (["<tool_call>\n{\n</tool_call>"] * 3, {}, "stopped:format", None),
    ],
)
async def test_a_limit_that_the_policy_runs_into_is_its_own(
    turns: list[str], options: dict[str, Any], ending: str, termination: str | None
) -> None:
    episode = await play(CREATE, turns, ["Make a task."], **options)
    assert (episode.ending.label, episode.score) == (ending, 0.0)
    assert episode.info["termination"] == termination


async def test_words_in_solo_mode_are_the_policys_end() -> None:
    episode = await play(SOLO, ["How can I help?"], solo=True)
    assert (episode.ending.label, episode.score) == ("stopped:format", 0.0)
    assert episode.info["termination"] == "agent_error"


async def test_a_turn_that_is_cut_and_a_full_context_are_the_policys() -> None:
    cut = reply(encode("I will"), finish="length")
    episode = await play(CREATE, [cut], ["Make a task."], max_new_tokens=6)
    assert (episode.ending.label, episode.score) == ("stopped:tokens", 0.0)
    full = await play(CREATE, [call("get_users"), "x"], ["Make a task."], context=830)
    assert (full.ending.label, full.score) == ("stopped:context", 0.0)


@pytest.mark.parametrize(
    ("answers", "boundary"),
    [
        ([BoundaryError(Boundary.USER, "503")], "lost:user"),
        (["Make a task.", RuntimeError("bug")], "lost:user"),
        (["Make a task.", ""], "lost:user"),
        (["  "], "lost:user"),
    ],
)
async def test_a_user_that_fails_loses_the_episode(answers: list[Any], boundary: str) -> None:
    episode = await play(CREATE, ["Hm.", "Hm."], answers)
    assert (episode.ending.label, episode.score) == (boundary, None)


async def test_an_engine_that_fails_loses_the_episode() -> None:
    broken = fail(BoundaryError(Boundary.ENGINE, "gone"))
    episode = await play(CREATE, [broken], ["Make a task."])
    assert (episode.ending.label, episode.score) == ("lost:engine", None)


@pytest.mark.parametrize(
    ("said", "score"), [("Verdict: true", 1.0), ("Verdict: false", 0.0), ("Well.", None)]
)
async def test_nl_assertions_are_the_judges_and_unknown_where_it_fails(
    said: str, score: float | None
) -> None:
    task, model = judged(), Opinion(said)
    turns = [*reference(task), "It is done."]
    episode = await play(task, turns, ["Help.", STOP], judge=AssertionJudge(model))
    assert episode.score == score
    assert episode.ending.label == ("lost:judge" if score is None else "finished")
    assert "It is done." in model.asked[0]


async def test_the_judge_is_not_asked_where_the_reward_is_0_anyway() -> None:
    model = Opinion(BoundaryError(Boundary.JUDGE, "503"))
    task = next(
        one
        for one in load_tasks("retail", "base", "v1.0")
        if one.criteria and one.criteria.nl_assertions and one.criteria.actions
    )
    episode = await play(task, ["No."], ["Help.", STOP], judge=AssertionJudge(model))
    assert (episode.score, model.asked) == (0.0, [])


async def test_without_a_judge_assertions_are_taken_as_met() -> None:
    task = judged()
    episode = await play(task, [*reference(task), "It is done."], ["Help.", STOP])
    assert episode.score == 1.0


async def test_an_aborted_turn_cancels() -> None:
    episode = await play(CREATE, [say("I", finish="abort")], ["Make a task."])
    assert (episode.ending.kind, episode.score) == ("cancelled", None)


async def test_a_task_that_begins_in_mid_conversation_goes_on_there() -> None:
    task = a_task("mock", "update_task_with_message_history")

    class Resumed(Customer):
        async def resume(self, task: Any, opening: str, exchanges: Any) -> None:
            self.told = (opening, list(exchanges))

    customer = Resumed(["Set it to completed.", STOP])
    episode = await play(task, [*reference(task), "Done."], customer=customer)
    assert customer.told == ("I need to create a task for the project review meeting.", [])
    assert customer.heard[0].startswith("I've created a task")  # type: ignore[attr-defined]
    assert episode.score == 1.0
    roles = [one["role"] for one in episode.transcript[:6]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    # One who can't have said it says what it has to say.
    other = await play(task, ["Hm."], ["Hello.", STOP])
    assert [one["content"] for one in other.transcript][4:7] == [customer.heard[0], "Hello.", "Hm."]


async def test_a_user_acts_on_its_phone_in_its_own_turn() -> None:
    task = solo_task()
    assert task.criteria is not None
    acts = [one for one in task.criteria.actions or () if one.side == "user"]
    assert acts
    calls = [write_call(one.name, one.arguments) for one in acts]
    customer = Customer(["It does not work.", *calls, "It works now.", STOP])
    theirs = [one for one in task.criteria.actions or () if one.side == "assistant"]
    turns = [call(one.name, **one.arguments) for one in theirs]
    episode = await play(task, [*turns, "Please do what I say.", "Fine."], customer=customer)
    assert episode.score == 1.0 and episode.metrics["user_calls"] == len(acts)
    assert "<tool_response>" in str(customer.heard[1])
    # The agent sees none of it.
    noted = [one for one in episode.transcript if one["author"].startswith("customer:")]
    assert len(noted) == len(acts) and "tool_response" not in str(episode.transcript[-3:])

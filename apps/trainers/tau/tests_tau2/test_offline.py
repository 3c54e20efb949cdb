"""Whole episodes with the users that need no model, through the method as a backend plays it."""

from __future__ import annotations

import pytest
from taubench.tau2 import Tau2Task, flags
from taubench.users import UserConfig
from turnwise.episode import Episode
from turnwise.method import Services, play
from turnwise.rollout import Rollout
from turnwise.testing import ScriptedEngine, byte_policy, call, say

from apps.trainers.tau.method import TauMethod
from apps.trainers.tau.options import TauOptions

TASKS = 3


def phone_turns(task: Tau2Task) -> list[str]:
    """An agent who does its part of the reference and asks for the user's by name."""
    assert task.criteria is not None
    turns = []
    for action in task.criteria.actions or ():
        if action.side == "assistant":
            turns.append(call(action.name, **action.arguments))
        else:
            given = ", ".join(f'{name}="{value}"' for name, value in action.arguments.items())
            turns.append(f"Please run {action.name}({given}).")
    return [*turns, *["Does it work now?"] * 6]


def talk_turns(task: Tau2Task) -> list[str]:
    """An agent who makes the calls of the reference and says what was to be said."""
    assert task.criteria is not None
    calls = [call(one.name, **one.arguments) for one in task.criteria.actions or ()]
    said = " ".join(["It is done.", *task.criteria.communicate])
    return [*calls, *[said] * 12]


async def played(env: str, task: Tau2Task, turns: list[str], method: TauMethod) -> Episode:
    rows = [row for row in method.rows("base") if row.metadata["task_id"] == task.id]
    rollout = Rollout(method.task(rows[0]), rows[0].id, rows[0].id, rows[0].id, seed=1)
    engine = ScriptedEngine([say(turn) for turn in turns])
    return await play(method, rollout, byte_policy(engine, context=10**6))


@pytest.mark.parametrize(
    ("env", "name"), [("tau2-telecom", "tau2-phone"), ("tau2-airline", "tau2-offline")]
)
async def test_the_reference_earns_the_reward_with_an_offline_user(env: str, name: str) -> None:
    method = TauMethod(TauOptions(env=env, user=UserConfig(strategy="offline")))
    await method.open(Services(environ={}))
    tasks = [method.task(row).task for row in method.rows("base")]
    chosen = [task for task in tasks if not flags(task).failing_calls and _short(task)][:TASKS]
    turns = phone_turns if env == "tau2-telecom" else talk_turns
    for task in chosen:
        episode = await played(env, task, turns(task), method)
        assert (episode.ending.kind, episode.score) == ("finished", 1.0), task.key
        assert episode.info["user"].startswith(name)
        assert episode.metrics["user_replies"] >= 2
    assert method.players()["user"].startswith(name)
    await method.close()


def _short(task: Tau2Task) -> bool:
    """A few calls, and none that hands the user over, after which the phone's user leaves."""
    actions = task.criteria.actions if task.criteria else None
    names = [action.name for action in actions or ()]
    return 2 <= len(names) <= 5 and "transfer_to_human_agents" not in names

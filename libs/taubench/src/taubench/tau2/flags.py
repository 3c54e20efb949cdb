"""What a task's score says less than it seems, and what cheap behaviour earns.

NL assertions count as met, since they need a judge. All is computed on first use, about a
millisecond a task, and kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from taubench.tau2.environment import STOP, Environment
from taubench.tau2.messages import Call
from taubench.tau2.scoring import Score, reference
from taubench.tau2.source import data_domain
from taubench.tau2.task import Tau2Task

TRANSFER_TOOL = "transfer_to_human_agents"
_CONDITION = re.compile(r"\b(?:if|unless|in case|otherwise|only when)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Tau2Flags:
    """
    Attributes:
        gold_reward: Reward of one who makes every reference action and says every expected string.
        noop_reward: Reward of one who does nothing until the user stops.
        transfer_reward: Reward of one who hands over to a human at once.
        failing_calls: Reference actions that return an error, as `tool: error`.
        nl_assertions: How many sentences a judge has to find true; 0 needs none.
        conditional: The scenario has conditions ("if ..."), which the offline user of airline and
            retail does not act out.
    """

    gold_reward: float
    noop_reward: float
    transfer_reward: float
    failing_calls: tuple[str, ...]
    nl_assertions: int
    conditional: bool

    @property
    def gold_fails(self) -> bool:
        """The reference solution does not earn the reward: nothing is to be learned from it."""
        return self.gold_reward < 1.0


def play_reference(environment: Environment) -> None:
    """Has both sides make the reference actions and say the expected strings, then stops."""
    task = environment.task
    actions = (task.criteria.actions if task.criteria else None) or ()
    if environment.turn == "agent":
        environment.step("Let me see.")
    for action in actions:
        call = Call(action.name, action.arguments)
        if action.side == "user":
            environment.user_step(None, [call])
            continue
        environment.user_step("Go on.")
        environment.step(None, [call])
        environment.step("Done.")
    if task.communicate:
        environment.user_step("Go on.")
        environment.step(" ".join(task.communicate))
    environment.user_step(STOP)


def _score(environment: Environment) -> Score:
    count = len(environment.task.criteria.nl_assertions) if environment.task.criteria else 0
    return environment.evaluate(nl=[True] * count)


def _reward_of(task: Tau2Task, *calls: Call) -> float:
    environment = _unlimited(task)
    if environment.turn == "user":
        environment.user_step("Hello.")
    if calls:
        environment.step(None, calls)
    environment.step("Goodbye.")
    environment.user_step(STOP)
    return _score(environment).reward or 0.0


def _unlimited(task: Tau2Task) -> Environment:
    return Environment(task, max_steps=1_000, max_errors=1_000)


@lru_cache(maxsize=4096)
def flags(task: Tau2Task) -> Tau2Flags:
    """The flags of a task; computed once per process."""
    gold = _unlimited(task)
    play_reference(gold)
    return Tau2Flags(
        gold_reward=_score(gold).reward or 0.0,
        noop_reward=_reward_of(task),
        transfer_reward=_reward_of(task, Call(TRANSFER_TOOL, {"summary": ""})),
        failing_calls=reference(task).failures,
        nl_assertions=len(task.criteria.nl_assertions) if task.criteria else 0,
        conditional=data_domain(task.domain) != "telecom"
        and _CONDITION.search(task.instruction) is not None,
    )


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("a baseline needs at least one task")
    return sum(values) / len(values)


def noop_baseline(tasks: Sequence[Tau2Task]) -> float:
    """Mean reward of doing nothing, NL assertions taken as met. ValueError without tasks."""
    return _mean([flags(task).noop_reward for task in tasks])


def transfer_baseline(tasks: Sequence[Tau2Task]) -> float:
    """Mean reward of handing over at once, NL assertions taken as met. ValueError without tasks."""
    return _mean([flags(task).transfer_reward for task in tasks])

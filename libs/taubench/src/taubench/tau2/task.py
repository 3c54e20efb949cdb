"""What a τ²-bench task is."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from taubench.tau2.messages import Message, messages_from_json

Side = Literal["assistant", "user"]
COMPONENTS = ("DB", "ENV_ASSERTION", "ACTION", "COMMUNICATE", "NL_ASSERTION")
"""What a reward may be made of."""
DEFAULT_BASIS = ("DB", "COMMUNICATE")
"""Upstream's reward basis of a task that names none."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of any function of a side's tools, be it a tool or not.

    Attributes:
        side: Whose tools.
        name, arguments: The function.
    """

    side: Side
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Assertion:
    """What must hold of the state at the end.

    Attributes:
        call: The function that tells.
        expected: What it must return.
    """

    call: FunctionCall
    expected: bool = True


@dataclass(frozen=True, slots=True)
class ReferenceAction:
    """A call that the reference solution makes.

    Attributes:
        id: Upstream's, unique within the task.
        side: Who makes it.
        name, arguments: The call.
        compare: The arguments by which a call is matched; None for those that the matched call
            has, which is upstream's rule and not the reference's own (see `KNOWN_HOLES`).
    """

    id: str
    side: Side
    name: str
    arguments: Mapping[str, Any]
    compare: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Criteria:
    """What an episode is graded by.

    Attributes:
        actions, assertions: None where the task does not have the list at all: without either the
            state is not compared.
        communicate: Strings that the agent must have said.
        nl_assertions: Sentences that a judge must find true of the conversation.
        basis: The components whose product is the reward.
    """

    actions: tuple[ReferenceAction, ...] | None = None
    assertions: tuple[Assertion, ...] | None = None
    communicate: tuple[str, ...] = ()
    nl_assertions: tuple[str, ...] = ()
    basis: tuple[str, ...] = DEFAULT_BASIS


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who the user is and what the user wants. Never shown to the agent.

    Attributes:
        task_instructions: How to behave; all there is where the scenario is a plain text.
        reason_for_call, known_info, unknown_info: Upstream's parts, None where it has none.
        persona: The manner, None for none.
    """

    task_instructions: str
    reason_for_call: str | None = None
    known_info: str | None = None
    unknown_info: str | None = None
    persona: str | None = None

    def __str__(self) -> str:
        parts = (
            ("Persona", self.persona),
            ("Why you call", self.reason_for_call),
            ("What you know", self.known_info),
            ("What you do not know", self.unknown_info),
            ("How you act", self.task_instructions),
        )
        return "\n".join(
            f"{title}:\n{textwrap.indent(text, '  ')}" for title, text in parts if text
        )


@dataclass(frozen=True, slots=True)
class InitialState:
    """What is changed before the conversation begins.

    Attributes:
        agent_data, user_data: Merged into a side's database.
        actions: Then called, in order.
        history: Said and done before; its calls have taken effect.
    """

    agent_data: Mapping[str, Any] | None = None
    user_data: Mapping[str, Any] | None = None
    actions: tuple[FunctionCall, ...] = ()
    history: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Tau2Task:
    """One user with one goal. Two tasks are equal if their `key` and `content_hash` are.

    Attributes:
        domain: One of `DOMAINS`.
        task_set: Which version of the tasks: one of `TASK_SETS[domain]`, or `file`.
        id: Upstream's.
        scenario: For the user.
        ticket: For the agent in solo mode, None if there is none.
        initial: What precedes the conversation.
        criteria: None if every conversation that ends properly is worth 1.
        content_hash: First 12 hex digits of the SHA-256 of the task as canonical JSON.
        raw: The task as upstream writes it. Read only.
    """

    domain: str
    task_set: str
    id: str
    scenario: Scenario = field(compare=False)
    ticket: str | None = field(compare=False)
    initial: InitialState = field(compare=False)
    criteria: Criteria | None = field(compare=False)
    content_hash: str
    raw: Mapping[str, Any] = field(compare=False, repr=False)

    @property
    def key(self) -> str:
        """For people, files and rows: `retail/v1.0/12`."""
        return f"{self.domain}/{self.task_set}/{self.id}"

    @property
    def instruction(self) -> str:
        """The scenario as text, as `turnwise.users.Scenario` wants it."""
        return str(self.scenario)

    @property
    def communicate(self) -> tuple[str, ...]:
        """Strings that the agent must have said; empty without criteria."""
        return self.criteria.communicate if self.criteria else ()


def same_content(one: Tau2Task, other: Tau2Task) -> bool:
    """Whether two tasks ask the same, whatever version they are said to be of.

    A file that upstream wrote holds its tasks with all defaults, so that their hashes differ.
    """
    return (one.id, one.scenario, one.ticket, one.initial, one.criteria) == (
        other.id,
        other.scenario,
        other.ticket,
        other.initial,
        other.criteria,
    )


def content_hash(raw: Mapping[str, Any]) -> str:
    """First 12 hex digits of the SHA-256 of a task as canonical JSON."""
    text = json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _function_call(raw: Mapping[str, Any]) -> FunctionCall:
    return FunctionCall(raw["env_type"], raw["func_name"], raw["arguments"])


def _action(raw: Mapping[str, Any]) -> ReferenceAction:
    compare = raw.get("compare_args")
    return ReferenceAction(
        id=raw["action_id"],
        side=raw.get("requestor") or "assistant",
        name=raw["name"],
        arguments=raw["arguments"],
        compare=None if compare is None else tuple(compare),
    )


def _criteria(raw: Mapping[str, Any] | None) -> Criteria | None:
    if raw is None:
        return None
    basis = tuple(raw.get("reward_basis", DEFAULT_BASIS))
    if unknown := set(basis) - set(COMPONENTS):
        raise ValueError(f"unknown in reward_basis: {', '.join(sorted(unknown))}")
    actions: Sequence[Any] | None = raw.get("actions")
    assertions: Sequence[Any] | None = raw.get("env_assertions")
    return Criteria(
        actions=None if actions is None else tuple(map(_action, actions)),
        assertions=None
        if assertions is None
        else tuple(
            Assertion(_function_call(one), bool(one.get("assert_value", True)))
            for one in assertions
        ),
        communicate=tuple(raw.get("communicate_info") or ()),
        nl_assertions=tuple(raw.get("nl_assertions") or ()),
        basis=basis,
    )


def _scenario(raw: Mapping[str, Any]) -> Scenario:
    instructions = raw["instructions"]
    if isinstance(instructions, str):
        return Scenario(instructions, persona=raw.get("persona"))
    return Scenario(
        task_instructions=instructions["task_instructions"],
        reason_for_call=instructions["reason_for_call"],
        known_info=instructions.get("known_info"),
        unknown_info=instructions.get("unknown_info"),
        persona=raw.get("persona"),
    )


def _initial(raw: Mapping[str, Any] | None) -> InitialState:
    if raw is None:
        return InitialState()
    data = raw.get("initialization_data") or {}
    return InitialState(
        agent_data=data.get("agent_data"),
        user_data=data.get("user_data"),
        actions=tuple(map(_function_call, raw.get("initialization_actions") or ())),
        history=messages_from_json(raw.get("message_history") or ()),
    )


def task_from_json(domain: str, raw: Mapping[str, Any], task_set: str = "file") -> Tau2Task:
    """A task as upstream's files hold it.

    Raises:
        ValueError: it is not one; the message names the key.
    """
    try:
        return Tau2Task(
            domain=domain,
            task_set=task_set,
            id=raw["id"],
            scenario=_scenario(raw["user_scenario"]),
            ticket=raw.get("ticket"),
            initial=_initial(raw.get("initial_state")),
            criteria=_criteria(raw.get("evaluation_criteria")),
            content_hash=content_hash(raw),
            raw=raw,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        name = raw.get("id") if isinstance(raw, Mapping) else raw
        raise ValueError(
            f"{domain}: task {name!r} is not a τ²-bench task: {type(error).__name__}: {error}"
        ) from error

"""The reward of an episode: the product of the components that the task's basis names.

| component     | 1.0 if                                                                           |
|---------------|----------------------------------------------------------------------------------|
| DB            | both databases equal those that the reference actions leave                      |
| ENV_ASSERTION | every assertion holds of the state                                               |
| ACTION        | every reference action was made by some call                                     |
| COMMUNICATE   | every string occurs in what the agent said, lower-cased and without commas       |
| NL_ASSERTION  | a judge finds every sentence true; unknown without a judge                       |

An episode that did not end by a stop has the reward 0, and one whose task has no criteria 1. The
rules are upstream's evaluator's, with its holes; `strict` closes those of `KNOWN_HOLES`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import zip_longest
from math import prod

from taubench.tau2.messages import Call, Message
from taubench.tau2.tables import Changes
from taubench.tau2.task import Criteria, ReferenceAction, Side, Tau2Task
from taubench.tau2.world import World


class Termination(StrEnum):
    """Why an episode is over, in upstream's words.

    The first five are endings of `Environment`. Files have the others too: those down to
    `judge_stop` count as reward 0, and the rest are failures of what surrounds the agent, which
    version 1.0 of the benchmark leaves out of the denominator.
    """

    USER_STOP = "user_stop"
    AGENT_STOP = "agent_stop"
    MAX_STEPS = "max_steps"
    TOO_MANY_ERRORS = "too_many_errors"
    AGENT_ERROR = "agent_error"
    USER_ERROR = "user_error"
    JUDGE_STOP = "judge_stop"
    TIMEOUT = "timeout"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    CONTEXT_WINDOW_EXCEEDED = "context_window_exceeded"
    UNEXPECTED_ERROR = "unexpected_error"

    @property
    def scored(self) -> bool:
        """Whether the reward is more than 0 by decree."""
        return self in (Termination.USER_STOP, Termination.AGENT_STOP)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        what: For people.
        met: Whether it is so; None if nobody knows.
    """

    what: str
    met: bool | None


@dataclass(frozen=True, slots=True)
class Score:
    """The score of an episode and what it is made of.

    Attributes:
        reward: 1.0 or 0.0; None if it hangs on NL assertions that nobody judged.
        basis: Names of the components that count; empty where the reward is by decree.
        components: Value of each of them; None if unknown.
        db_match: Whether the databases are equal; None if the task has nothing to compare with.
            Of telecom it says little by upstream's rule (`KNOWN_HOLES`).
        assertions, actions, communicated, nl_assertions: One by one, in the basis or not.
        note: Why the reward is by decree; "" if it is not.
    """

    reward: float | None
    basis: tuple[str, ...] = ()
    components: Mapping[str, float | None] = field(default_factory=dict)
    db_match: bool | None = None
    assertions: tuple[Check, ...] = ()
    actions: tuple[Check, ...] = ()
    communicated: tuple[Check, ...] = ()
    nl_assertions: tuple[Check, ...] = ()
    note: str = ""

    @property
    def needs_nl(self) -> bool:
        """Whether the reward is unknown until somebody judges the NL assertions."""
        return self.reward is None

    def with_nl(self, verdicts: Sequence[bool]) -> Score:
        """The score with a judge's verdicts on the NL assertions, in their order.

        Raises:
            ValueError: there are not as many as assertions.
        """
        if self.note:
            return self
        if len(verdicts) != len(self.nl_assertions):
            raise ValueError(
                f"{len(self.nl_assertions)} NL assertions need as many verdicts, "
                f"got {len(verdicts)}"
            )
        checks = tuple(
            replace(check, met=bool(verdict))
            for check, verdict in zip(self.nl_assertions, verdicts, strict=True)
        )
        components = dict(self.components)
        if "NL_ASSERTION" in components:
            components["NL_ASSERTION"] = _all_met(checks)
        return replace(
            self, reward=_product(components), components=components, nl_assertions=checks
        )


@dataclass(frozen=True, slots=True)
class Reference:
    """What a task's reference actions lead to.

    Attributes:
        changes: Both databases by upstream's rule, by which telecom's sides stay apart.
        synced: Both databases once the sides are brought in line.
        failures: What failed, as `tool: error`.
    """

    changes: tuple[Changes, Changes | None]
    synced: tuple[Changes, Changes | None]
    failures: tuple[str, ...]


# Holds telecom's 2,285 tasks and all others.
@lru_cache(maxsize=4096)
def reference(task: Tau2Task) -> Reference:
    """Replays the task's reference actions on a fresh state; once per task and process."""
    world = World(task)
    for made in _calls(task.initial.history):
        world.call(made.call, made.side)
    world.sync()
    actions = task.criteria.actions if task.criteria else None
    failures = [world.apply(action) for action in actions or ()]
    changes = world.changes()
    world.sync()
    return Reference(changes, world.changes(), tuple(one for one in failures if one))


@dataclass(frozen=True, slots=True)
class _Made:
    """A call that was made, by whom, and whether it failed."""

    side: Side
    call: Call
    failed: bool


def _calls(history: Sequence[Message]) -> Iterator[_Made]:
    for position, message in enumerate(history):
        side: Side = "user" if message.role == "user" else "assistant"
        for call, result in zip_longest(message.calls, _results(history, position, message)):
            yield _Made(side, call, result is None or result.error)


def _results(history: Sequence[Message], position: int, message: Message) -> Sequence[Message]:
    return history[position + 1 : position + 1 + len(message.calls)]


def score(
    task: Tau2Task,
    world: World,
    history: Sequence[Message],
    termination: Termination | None,
    *,
    nl: Sequence[bool] | None = None,
    strict: bool = False,
) -> Score:
    """Grades an episode; see the module's docstring.

    Args:
        task: The task.
        world: The state at the end.
        history: All messages, those that the task begins with included.
        termination: How it ended; None if it has not.
        nl: Verdicts on the NL assertions, in order; None if nobody judged.
        strict: Without upstream's holes.

    Raises:
        ValueError: `nl` has not as many verdicts as the task has assertions.
    """
    if termination is None or not termination.scored:
        why = f"ended by {termination}" if termination else "not over"
        return Score(0.0, note=why)
    if task.criteria is None:
        return Score(1.0, note="no criteria")
    criteria = task.criteria
    db_match = _db_match(task, world, strict)
    assertions = tuple(
        Check(_describe(one.call.name, one.call.arguments), world.holds(one))
        for one in criteria.assertions or ()
    )
    actions = _action_checks(criteria, history, strict, solo=world.solo)
    communicated = tuple(
        Check(text, _was_said(text, history, strict)) for text in criteria.communicate
    )
    nl_assertions = tuple(Check(text, None) for text in criteria.nl_assertions)
    values = {
        "DB": float(db_match is not False),
        "ENV_ASSERTION": _all_met(assertions),
        "ACTION": _all_met(actions),
        "COMMUNICATE": _all_met(communicated),
        "NL_ASSERTION": _all_met(nl_assertions),
    }
    components = {name: values[name] for name in criteria.basis}
    graded = Score(
        reward=_product(components),
        basis=criteria.basis,
        components=components,
        db_match=db_match,
        assertions=assertions,
        actions=actions,
        communicated=communicated,
        nl_assertions=nl_assertions,
    )
    return graded if nl is None else graded.with_nl(nl)


def _describe(name: str, arguments: Mapping[str, object]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _db_match(task: Tau2Task, world: World, strict: bool) -> bool | None:
    assert task.criteria is not None
    if task.criteria.actions is None and task.criteria.assertions is None:
        return None
    expected = reference(task)
    return world.changes() == (expected.synced if strict else expected.changes)


def _action_checks(
    criteria: Criteria, history: Sequence[Message], strict: bool, *, solo: bool
) -> tuple[Check, ...]:
    made = list(_calls(history))

    def matches(action: ReferenceAction, one: _Made) -> bool:
        if not _same_call(action, one.call, strict):
            return False
        return not strict or (not one.failed and (solo or one.side == action.side))

    return tuple(
        Check(
            _describe(action.name, action.arguments),
            any(matches(action, one) for one in made),
        )
        for action in criteria.actions or ()
    )


def _same_call(action: ReferenceAction, call: Call, strict: bool) -> bool:
    if action.name != call.name:
        return False
    wanted = action.compare
    if wanted is None:
        wanted = (*call.arguments, *action.arguments) if strict else tuple(call.arguments)
    return {key: call.arguments[key] for key in wanted if key in call.arguments} == {
        key: action.arguments[key] for key in wanted if key in action.arguments
    }


def _was_said(text: str, history: Sequence[Message], strict: bool) -> bool:
    wanted = text.lower()
    for message in history:
        if message.role != "assistant" or not message.has_text or (strict and message.calls):
            continue
        said = (message.content or "").lower().replace(",", "")
        if not strict and wanted in said:
            return True
        # As a whole: neither "10" in "100" nor in "10.5".
        if strict and re.search(rf"(?<![\w.]){re.escape(wanted)}(?!\w|\.\d)", said):
            return True
    return False


def _all_met(checks: Sequence[Check]) -> float | None:
    if any(check.met is False for check in checks):
        return 0.0
    return None if any(check.met is None for check in checks) else 1.0


def _product(components: Mapping[str, float | None]) -> float | None:
    """Of known and unknown factors; 0 whatever an unknown one is, once another is 0."""
    known = [value for value in components.values() if value is not None]
    if len(known) == len(components) or 0.0 in known:
        return float(prod(known))
    return None

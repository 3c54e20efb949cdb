"""One τ² episode: who speaks when, what a call returns, and when it is over.

1. The agent has said the greeting; then agent and user take turns. A message with calls gives the
   turn back to its speaker once every call was made, in order; one without passes it on.
2. A message counts as one step, and so do all calls of a message together. After a step that does
   not wait for calls the limits are looked at: `max_steps`, then `max_errors`, which counts failed
   calls of both sides over the whole episode. A limit takes precedence over the user's stop.
3. The user ends the episode by a text without calls that holds one of three markers. The agent
   can't end it, but in solo mode, where it has the user's tools, nobody to talk to, and the tool
   `done`; a text that is not a stop ends such an episode as the agent's error.

Steps, limits and endings are those of upstream's orchestrator. Where it raises and loses the run
because of what a model wrote, the episode goes on or ends here: a message of the agent with
neither text nor call ends it as the agent's error; a call whose arguments can't be read gets an
error as its result. A message of the user with neither text nor call raises, since nobody scores
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from taubench.tau2.messages import Call, Message
from taubench.tau2.scoring import Score, Termination, score
from taubench.tau2.task import Side, Tau2Task
from taubench.tau2.world import World

GREETING = "Hi! How can I help you today?"
"""What the agent is taken to have said first, as upstream has it."""
STOP = "###STOP###"
USER_STOPS = (STOP, "###TRANSFER###", "###OUT-OF-SCOPE###")
DONE = "done"
"""The tool by which an agent in solo mode ends the episode."""
MAX_STEPS = 200
MAX_ERRORS = 10


class Turn(StrEnum):
    """Who speaks next."""

    AGENT = "agent"
    USER = "user"
    NOBODY = "nobody"


class UserProtocolError(ValueError):
    """The user's message has neither text nor calls. The user's failure, never the agent's."""


class TrajectoryMismatch(ValueError):
    """A recorded result is not what its call returns."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a message led to.

    Attributes:
        results: One for each call, in order; empty for a text.
        turn: Who speaks next.
        termination: Why the episode is over, None while it is not.
    """

    results: tuple[Message, ...]
    turn: Turn
    termination: Termination | None = None

    @property
    def done(self) -> bool:
        return self.termination is not None


def supports_solo(task: Tau2Task) -> bool:
    """Whether the task can be done without a user: it has a ticket, and nothing was said before."""
    spoken = [message for message in task.initial.history if message.role == "user"]
    if task.domain in ("airline", "retail") or spoken or task.ticket is None:
        return False
    return task.criteria is not None and bool(task.criteria.actions)


def replay(world: World, history: Sequence[Message]) -> None:
    """Makes the calls of a history anew.

    Raises:
        TrajectoryMismatch: a result is missing or another one than recorded.
    """
    for position, message in enumerate(history):
        if message.role == "tool" or not message.calls:
            continue
        side: Side = "user" if message.role == "user" else "assistant"
        recorded = history[position + 1 : position + 1 + len(message.calls)]
        for call, expected in zip(message.calls, recorded, strict=False):
            found = world.call(call, side)
            if expected.role != "tool" or expected.id != call.id:
                raise TrajectoryMismatch(
                    f"message {position}: the result of {call.name} is missing"
                )
            if _value(found.content) != _value(expected.content):
                raise TrajectoryMismatch(
                    f"message {position}: {call.name} returns {found.content!r:.200}, "
                    f"recorded is {expected.content!r:.200}"
                )
        if len(recorded) < len(message.calls):
            raise TrajectoryMismatch(f"message {position}: it has calls without a result")
    world.sync()


def _value(text: str | None) -> object:
    try:
        return json.loads(text or "")
    except ValueError:
        return text


class Environment:
    """One episode of one task.

    Attributes:
        task: The task.
        solo: The agent works on the ticket alone.
        turn: Who speaks next.
        termination: Why the episode is over, None while it is not.
        steps: Steps taken, as upstream counts them.
        errors: Failed calls of both sides.
    """

    __slots__ = (
        "task",
        "solo",
        "turn",
        "termination",
        "steps",
        "errors",
        "_world",
        "_history",
        "_max_steps",
        "_max_errors",
        "_calls",
    )

    def __init__(
        self,
        task: Tau2Task,
        *,
        solo: bool = False,
        max_steps: int = MAX_STEPS,
        max_errors: int = MAX_ERRORS,
    ) -> None:
        """
        Args:
            task: The task.
            solo: Without a user.
            max_steps: After so many steps the episode is over.
            max_errors: After so many failed calls the episode is over.

        Raises:
            ValueError: unknown domain, a limit below 1, or the task has no solo mode.
            SourceError: a package with the domain's files is missing or changed.
            TrajectoryMismatch: the task's own history does not hold.
        """
        if max_steps < 1 or max_errors < 1:
            raise ValueError(
                f"max_steps and max_errors must be at least 1, got {max_steps} and {max_errors}"
            )
        if solo and not supports_solo(task):
            raise ValueError(f"{task.key} can't be done without a user: see supports_solo")
        self.task, self.solo = task, solo
        self._max_steps, self._max_errors = max_steps, max_errors
        self._world = World(task, solo=solo)
        replay(self._world, task.initial.history)
        self._history = list(task.initial.history)
        self.termination: Termination | None = None
        self.errors = self._calls = 0
        # Upstream makes the first message of solo mode before it counts.
        self.steps = -1 if solo else 0
        if not self._history and not solo:
            self._history.append(Message("assistant", GREETING))
        self.turn = self._first_turn()

    def _first_turn(self) -> Turn:
        if not self._history:
            return Turn.AGENT
        last = self._history[-1]
        if last.role == "tool":
            return Turn.USER if last.side == "user" else Turn.AGENT
        return Turn.USER if last.role == "assistant" else Turn.AGENT

    @property
    def done(self) -> bool:
        return self.termination is not None

    @property
    def history(self) -> tuple[Message, ...]:
        """All messages, those that the task begins with included."""
        return tuple(self._history)

    def seen_by_agent(self) -> tuple[Message, ...]:
        """Its own messages and results, and the user's words."""
        return self._seen_by("assistant")

    def seen_by_user(self) -> tuple[Message, ...]:
        """Its own messages and results, and the agent's words without calls."""
        return self._seen_by("user")

    def _seen_by(self, side: Side) -> tuple[Message, ...]:
        return tuple(
            message
            for message in self._history
            if (message.side == side if message.role == "tool" else message.role == side)
            or (message.role != "tool" and not message.calls)
        )

    def step(self, content: str | None, calls: Iterable[Call] = ()) -> StepResult:
        """Takes the agent's message.

        Args:
            content: The words. Beside calls they reach nobody.
            calls: Made in order, all of them. See `calls_from`.

        Raises:
            RuntimeError: the caller's mistake, never the model's: it is not the agent's turn.
        """
        self._expect(Turn.AGENT)
        message = self._message("assistant", content, calls)
        if self.solo:
            ends = any(call.name == DONE and call.error is None for call in message.calls)
            if ends or STOP in (message.content or ""):
                return self._say(Message("assistant", STOP), Termination.AGENT_STOP)
        if not message.calls and (self.solo or not message.has_text):
            return self._say(message, Termination.AGENT_ERROR)
        return self._say(message)

    def user_step(self, content: str | None, calls: Iterable[Call] = ()) -> StepResult:
        """Takes the user's message.

        Args:
            content: The words. Beside calls they reach nobody.
            calls: Made in order, all of them, with the user's tools.

        Raises:
            RuntimeError: the caller's mistake: it is not the user's turn.
            UserProtocolError: there is neither text nor call.
        """
        self._expect(Turn.USER)
        message = self._message("user", content, calls)
        if not message.calls and not message.has_text:
            raise UserProtocolError(f"{self.task.key}: the user's message is empty")
        stops = not message.calls and any(mark in (message.content or "") for mark in USER_STOPS)
        return self._say(message, Termination.USER_STOP if stops else None)

    def evaluate(self, *, nl: Sequence[bool] | None = None, strict: bool = False) -> Score:
        """The score of what was said and done; 0 before the end, as upstream has it.

        Args:
            nl: The judge's verdicts on the task's NL assertions, in order; None without a judge.
            strict: Without upstream's holes (`KNOWN_HOLES`).

        Raises:
            ValueError: `nl` has not as many verdicts as the task has assertions.
        """
        return score(self.task, self._world, self._history, self.termination, nl=nl, strict=strict)

    def hashes(self) -> tuple[str, str | None]:
        """Upstream's SHA-256 of the agent's and the user's database, in hex. Up to 0.1 s."""
        return self._world.hashes()

    def _message(self, role: Side, content: str | None, calls: Iterable[Call]) -> Message:
        named = []
        for call in calls:
            self._calls += 1
            named.append(call if call.id else replace(call, id=f"call_{self._calls}"))
        return Message(role, content, tuple(named), side=role)

    def _expect(self, turn: Turn) -> None:
        if self.turn is not turn:
            what = "the episode is over" if self.done else f"it is the {self.turn}'s turn"
            raise RuntimeError(f"{self.task.key}: {what}")

    def _say(self, message: Message, ending: Termination | None = None) -> StepResult:
        self._history.append(message)
        self.steps += 1
        results: tuple[Message, ...] = ()
        side: Side = "user" if message.role == "user" else "assistant"
        if message.calls and ending is None:
            results = tuple(self._world.call(call, side) for call in message.calls)
            self._world.sync()
            self._history.extend(results)
            self.steps += 1
            self.errors += sum(result.error for result in results)
        if self.steps >= self._max_steps:
            ending = Termination.MAX_STEPS
        if self.errors >= self._max_errors:
            ending = Termination.TOO_MANY_ERRORS
        self.termination = ending
        speaks_on = message.role if results else "user" if message.role == "assistant" else "agent"
        self.turn = (
            Turn.NOBODY if ending else Turn("agent" if speaks_on == "assistant" else speaks_on)
        )
        return StepResult(results, self.turn, ending)


def evaluate(
    task: Tau2Task,
    history: Sequence[Message],
    termination: Termination,
    *,
    solo: bool = False,
    nl: Sequence[bool] | None = None,
    strict: bool = False,
) -> Score:
    """The score of a saved episode, by making its calls anew.

    Args:
        task: The task.
        history: All messages, those that the task begins with included.
        termination: How it ended.
        solo, nl, strict: As of `Environment`.

    Raises:
        TrajectoryMismatch: a recorded result is not what its call returns.
        ValueError: `nl` has not as many verdicts as the task has assertions.
    """
    world = World(task, solo=solo)
    if termination.scored and task.criteria is not None:
        replay(world, history)
    return score(task, world, history, termination, nl=nl, strict=strict)

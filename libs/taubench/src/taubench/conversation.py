"""Who takes part in a tau-bench episode beside the policy, and the conversation that they lead.

What is the same whoever is at the desk: a policy that samples tokens (`taubench.episode`)
or a model that is asked by messages (`taubench.chat_episode`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from turnwise.episode import Boundary, BoundaryError, Ending, Limit, crossing
from turnwise.users import OfflineUser, User

from taubench.actions import DroppedCall, SeveralCalls, Turn, to_turn
from taubench.environment import Environment, StepResult
from taubench.prompts import PromptView, prompt_view
from taubench.strategies import TextView
from taubench.task import RESPOND, Action, Task

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What an episode needs beside the policy. Shared by all episodes.

    Attributes:
        user: Makes the customer of one episode.
        view: What the policy is shown.
        several_calls: What to do with more than one call in a turn.
        max_turns: Sampled turns of an episode, at least 1.
        max_format_errors: Turns in a row whose calls cannot be read, at least 1.
        user_deadline_s: For each message of the customer, in seconds.
        engine_deadline_s: For each sampled turn, in seconds.
        environment: Makes the environment of one task.
    """

    user: Callable[[], User]
    view: PromptView
    several_calls: SeveralCalls = "first"
    max_turns: int = 30
    max_format_errors: int = 3
    user_deadline_s: float = 120.0
    engine_deadline_s: float = 600.0
    environment: Callable[[Task], Environment] = Environment

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_format_errors", "user_deadline_s", "engine_deadline_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, found {getattr(self, name)}")


def compact_user() -> OfflineUser:
    """A customer who says everything at once and leaves at the agent's first statement."""
    return OfflineUser(opening="everything", patience=1)


def default_services(prompt: str) -> Services:
    """The services that go with a view: the offline user, and turns enough for its tasks.

    `compact` means `compact_user` and 8 turns, because a small policy does not ask questions;
    `full` means the offline user that answers questions and 30 turns, as upstream.

    Raises ValueError for an unknown view.
    """
    view = prompt_view(prompt)
    if prompt == "compact":
        return Services(user=compact_user, view=view, max_turns=8)
    return Services(user=OfflineUser, view=view)


class _Unreadable(Protocol):
    """A call that cannot be read, as `toolparse` and the text strategies report it."""

    @property
    def kind(self) -> str: ...

    @property
    def message(self) -> str: ...


class Conversation:
    """Customer, environment and transcript of one episode, whoever is at the desk."""

    def __init__(self, task: Task, services: Services) -> None:
        self.task, self.services = task, services
        self.user: User | None = None
        self.user_name = ""
        self.tools = services.view.tools(task.domain)
        self.environment: Environment | None = None
        self.reward = 0.0
        self.messages: list[dict[str, Any]] = []
        self.dropped: list[DroppedCall] = []
        self.counts: Counter[str] = Counter()
        self.unreadable = 0
        self.user_s = self.engine_s = 0.0
        self.overflow_by = ""

    async def _open(self) -> None:
        """The prompt and what the customer says first."""
        async with crossing(Boundary.ENVIRONMENT):
            self.environment = self.services.environment(self.task)
        async with crossing(Boundary.USER):
            self.user = self.services.user()
            self.user_name = self.user.name
        opening = await self._ask_user(self.user.reset(self.task))
        _check_words(opening)
        system = self.services.view.system(self.task.domain)
        self._note({"role": "system", "content": system}, "prompt", 0)
        self._note({"role": "user", "content": opening}, self.user_name, 0)

    def _decode(
        self,
        content: str | None,
        calls: Sequence[tuple[object, object]],
        errors: Sequence[_Unreadable],
    ) -> Turn:
        """The actions of a turn; counts what was called, dropped and unreadable.

        A tool that does not exist is the environment's to answer, as upstream's does.
        """
        for error in errors:
            self.counts["parse_errors"] += 1
            self.counts[f"parse_errors/{error.kind}"] += 1
        decoded = to_turn(
            content,
            calls,
            errors=[error.message for error in errors],
            several=self.services.several_calls,
        )
        self.unreadable = self.unreadable + 1 if errors and not calls else 0
        self.counts["tool_calls"] += sum(name != RESPOND for name, _ in calls)
        self.dropped.extend(decoded.dropped)
        return decoded

    def _overflow(self, answers: Sequence[Mapping[str, Any]]) -> Ending:
        """Out of context; notes whose message it was that did not fit, if it was not the policy's.

        The ending is the policy's either way: it had the context, and the turns to use it up.
        """
        if answers:
            self.overflow_by = str(answers[-1]["author"])
            role = "tool" if self.overflow_by.startswith("tool:") else "user"
            self.counts[f"overflow/{role}"] += 1
        return Ending.stopped(Limit.CONTEXT)

    async def _act(self, decoded: Turn, turn: int) -> tuple[Ending | None, list[dict[str, Any]]]:
        before = len(self.messages)
        for position, action in enumerate(decoded.actions):
            result = await self._step(action)
            self._note_answer(result, turn + 1)
            if result.done:
                self.reward = result.reward
                self.dropped.extend(
                    DroppedCall(left.name, dict(left.kwargs), "episode over")
                    for left in decoded.actions[position + 1 :]
                )
                return Ending.finished(), []
        if self.unreadable >= self.services.max_format_errors:
            return Ending.stopped(Limit.FORMAT), []
        return None, self.messages[before:]

    async def _step(self, action: Action) -> StepResult:
        assert self.environment is not None and self.user is not None
        async with crossing(Boundary.ENVIRONMENT):
            result = self.environment.step(action)
        if not result.awaits_user:
            return result
        reply = await self._ask_user(self.user.reply(action.kwargs["content"]))
        _check_words(reply.text)
        self.counts["user_replies"] += 1
        async with crossing(Boundary.ENVIRONMENT):
            return self.environment.hear(reply.text, reply.done)

    async def _ask_user(self, answer: Awaitable[AnswerT]) -> AnswerT:
        started = time.perf_counter()
        try:
            async with crossing(Boundary.USER, deadline_s=self.services.user_deadline_s):
                return await answer
        finally:
            self.user_s += time.perf_counter() - started

    def _note(self, message: Mapping[str, Any], author: str, turn: int) -> None:
        self.messages.append({**message, "author": author, "turn": turn})

    def _note_answer(self, result: StepResult, turn: int) -> None:
        if result.source == "user":
            message = {"role": "user", "content": result.observation}
            self._note(message, self.user_name, turn)
            return
        content = self.services.view.observation(result.source, result.observation)
        message = {"role": "tool", "name": result.source, "content": content}
        if isinstance(self.services.view, TextView):
            message = {"role": "user", "content": content}
        self._note(message, f"tool:{result.source}", turn)

    def metrics(self) -> dict[str, float]:
        counted = ("turns", "tool_calls", "parse_errors", "sampled_tokens", "cached_tokens")
        return {
            **dict.fromkeys((*counted, "user_replies"), 0.0),
            **{name: float(count) for name, count in self.counts.items()},
            "dropped_calls": float(len(self.dropped)),
            "user_s": self.user_s,
            "engine_s": self.engine_s,
        }

    def _score_parts(self) -> dict[str, Any]:
        if self.environment is not None:
            parts = self.environment.score()
            return {
                "r_actions": parts.r_actions,
                "r_outputs": parts.r_outputs,
                "outputs": dict(parts.outputs),
                "diff": [asdict(difference) for difference in self.environment.diff()],
            }
        return {}


def _check_words(words: object) -> None:
    if not isinstance(words, str):
        raise BoundaryError(Boundary.USER, f"the customer gave {type(words).__name__}, not text")

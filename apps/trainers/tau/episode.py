"""One tau-bench episode: the loop for training and evaluation, on every backend.

1. The user speaks first; the prompt is the view's system prompt, its tools and that message.
2. The policy is asked for a turn (`turnwise.conversation`).
3. The turn becomes actions (`taubench.to_turn`), from its tool calls or, with a text view
   (`taubench.strategies`), from its words. Tools answer at once; a message goes to the user, who is
   awaited here and never inside of the environment.
4. All answers of a turn form one addition to the conversation, and so the next prompt.

| what happens                                                    | ending            | score   |
|-----------------------------------------------------------------|-------------------|---------|
| the user stops, or a terminating tool is called                 | finished          | reward  |
| `max_turns` turns and not over                                  | stopped(turns)    | 0       |
| a turn reaches `max_new_tokens`, or an endpoint's `max_tokens`  | stopped(tokens)   | 0       |
| prompt or turn reaches `max_context_tokens`, or an endpoint     | stopped(context)  | 0       |
| refuses the conversation for its length                         |                   |         |
| `max_format_errors` turns in a row of which no call can be read | stopped(format)   | 0       |
| engine, user or environment fails or misses its deadline        | lost(boundary)    | none    |
| the engine gives a turn back unfinished (`abort`)               | cancelled         | none    |

A stopped episode scores 0 as upstream's does, which pays only when the conversation is over.
Cancellation of the surrounding task passes through after the engine was told.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from taubench import RESPOND, Action, DroppedCall, Environment, StepResult, Task, to_turn
from taubench import Turn as Taken
from taubench.strategies import TextView
from turnwise.conversation import Conversation, Overflow, Turn
from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit, crossing
from turnwise.policy import AnyPolicy, EndpointPolicy
from turnwise.rollout import Rollout
from turnwise.users import ReplayedUser, User, check_message

from apps.trainers.tau.options import TauOptions

AnswerT = TypeVar("AnswerT")
MakeUser = Callable[[], User]
MakeEnvironment = Callable[[Task], Environment]


async def run_episode(
    rollout: Rollout[Task],
    policy: AnyPolicy,
    options: TauOptions,
    *,
    make_user: MakeUser,
    make_environment: MakeEnvironment = Environment,
) -> Episode:
    """Plays one episode. Raises nothing on what the model wrote or a service did.

    Args:
        rollout: Its task is what the user wants.
        policy: Who is asked.
        options: What it is shown, and the limits.
        make_user: Makes the user of this episode.
        make_environment: Makes the environment of a task.

    `Episode.metrics` has beside the conversation's `user_replies`, `dropped_calls`, `user_s` in
    seconds, and `overflow/tool` or `overflow/user` where a message of theirs did not fit. `info`
    has `user` and `prompt` (names), `dropped_calls`, `overflow_by` and the parts of the score.
    """
    run = _Run(rollout, options, make_user, make_environment)
    talk = Conversation(
        policy,
        rollout,
        tools=run.view.tools(rollout.task.domain),
        deadline_s=options.engine_deadline_s,
    )
    try:
        async with talk:
            ending = await run.play(talk)
    except BoundaryError as error:
        ending = Ending.lost(error)
    return talk.episode(ending, run.reward, metrics=run.metrics(), info=run.info(policy))


class _Run:
    """User, environment and counts of one episode under way."""

    def __init__(
        self,
        rollout: Rollout[Task],
        options: TauOptions,
        make_user: MakeUser,
        make_environment: MakeEnvironment,
    ) -> None:
        self.rollout, self.options, self.view = rollout, options, options.view
        self.reward = 0.0
        self._make_user, self._make_environment = make_user, make_environment
        self._user: User | None = None
        self._user_name = ""
        self._environment: Environment | None = None
        self._dropped: list[DroppedCall] = []
        self._counts: Counter[str] = Counter()
        self._unreadable = 0
        self._user_s = 0.0
        self._overflow_by = ""

    async def play(self, talk: Conversation) -> Ending:
        await self._open(talk)
        answered = ""
        for _ in range(self.options.turns):
            turn = await talk.ask()
            if isinstance(turn, Overflow):
                self._note_overflow(answered)
                return turn.ending
            if turn.ending is not None:
                return turn.ending
            ending, answered = await self._act(self._read(turn), talk)
            if ending is not None:
                return ending
        return Ending.stopped(Limit.TURNS)

    async def _open(self, talk: Conversation) -> None:
        """The prompt and what the user says first."""
        task = self.rollout.task
        async with crossing(Boundary.ENVIRONMENT):
            self._environment = self._make_environment(task)
        async with crossing(Boundary.USER):
            user = self._make_user()
            self._user_name = user.name
        replay = self.rollout.replay
        self._user = user if replay is None else ReplayedUser(user, replay)
        opening = await self._ask_user(self._user.reset(task))
        check_message(opening)
        system = {"role": "system", "content": self.view.system(task.domain)}
        talk.add(system, author="prompt")
        talk.add({"role": "user", "content": opening}, author=self._user_name)

    def _read(self, turn: Turn) -> Taken:
        """The actions of a turn; counts what was called, dropped and unreadable."""
        if not isinstance(self.view, TextView):
            read = sum(not isinstance(call.arguments, str) for call in turn.calls)
            calls = [(call.name, call.arguments) for call in turn.calls]
            return self._decode(turn.content, calls, turn.errors, read)
        text = self.view.read(turn.text)
        for error in text.errors:
            self._counts["parse_errors"] += 1
            self._counts[f"parse_errors/{error.kind}"] += 1
        return self._decode(text.thought, text.calls, text.errors, len(text.calls))

    def _decode(
        self,
        content: str,
        calls: Sequence[tuple[object, object]],
        errors: Sequence[Any],
        read: int,
    ) -> Taken:
        """A tool that does not exist is the environment's to answer, as upstream's does."""
        taken = to_turn(
            content,
            calls,
            errors=[error.message for error in errors],
            several=self.options.several_calls or "first",
        )
        self._unreadable = self._unreadable + 1 if errors and not read else 0
        self._counts["tool_calls"] += sum(name != RESPOND for name, _ in calls)
        self._dropped.extend(taken.dropped)
        return taken

    async def _act(self, taken: Taken, talk: Conversation) -> tuple[Ending | None, str]:
        """How the episode ended, if it did, and who gave the last answer."""
        author = ""
        for position, action in enumerate(taken.actions):
            result = await self._step(action)
            author = self._answer(result, talk)
            if result.done:
                self.reward = result.reward
                self._dropped.extend(
                    DroppedCall(left.name, dict(left.kwargs), "episode over")
                    for left in taken.actions[position + 1 :]
                )
                return Ending.finished(), author
        if self._unreadable >= self.options.max_format_errors:
            return Ending.stopped(Limit.FORMAT), author
        return None, author

    async def _step(self, action: Action) -> StepResult:
        assert self._environment is not None and self._user is not None
        async with crossing(Boundary.ENVIRONMENT):
            result = self._environment.step(action)
        if not result.awaits_user:
            return result
        reply = await self._ask_user(self._user.reply(action.kwargs["content"]))
        check_message(reply.text)
        self._counts["user_replies"] += 1
        async with crossing(Boundary.ENVIRONMENT):
            return self._environment.hear(reply.text, reply.done)

    def _answer(self, result: StepResult, talk: Conversation) -> str:
        """Adds an answer for the next prompt; returns its author."""
        if result.source == "user":
            talk.add({"role": "user", "content": result.observation}, author=self._user_name)
            return self._user_name
        content = self.view.observation(result.source, result.observation)
        message = {"role": "tool", "name": result.source, "content": content}
        if isinstance(self.view, TextView):
            message = {"role": "user", "content": content}
        author = f"tool:{result.source}"
        talk.add(message, author=author)
        return author

    async def _ask_user(self, answer: Awaitable[AnswerT]) -> AnswerT:
        started = time.perf_counter()
        try:
            async with crossing(Boundary.USER, deadline_s=self.options.message_deadline_s):
                return await answer
        finally:
            self._user_s += time.perf_counter() - started

    def _note_overflow(self, answered: str) -> None:
        """Whose message it was that did not fit, if it was not the policy's.

        The ending is the policy's either way: it had the context, and the turns to use it up.
        """
        self._overflow_by = answered
        if answered:
            role = "tool" if answered.startswith("tool:") else "user"
            self._counts[f"overflow/{role}"] += 1

    def metrics(self) -> dict[str, float]:
        return {
            **dict.fromkeys(("tool_calls", "user_replies"), 0.0),
            **{name: float(count) for name, count in self._counts.items()},
            "dropped_calls": float(len(self._dropped)),
            "user_s": self._user_s,
        }

    def info(self, policy: AnyPolicy) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "user": self._user_name,
            "prompt": self.view.name,
            "dropped_calls": [asdict(call) for call in self._dropped],
            "overflow_by": self._overflow_by,
        }
        if isinstance(policy, EndpointPolicy):
            facts["model"] = policy.client.config.model
        if self._environment is not None:
            parts = self._environment.score()
            facts |= {
                "r_actions": parts.r_actions,
                "r_outputs": parts.r_outputs,
                "outputs": dict(parts.outputs),
                "diff": [asdict(difference) for difference in self._environment.diff()],
            }
        return facts

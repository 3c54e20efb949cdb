"""One τ²-bench episode: the loop for training and evaluation, on every backend.

1. The prompt is the instructions with the policy document, the tools, and what the agent is taken
   to have said first. Solo, the user's tools are among them and a ticket is in the user's place.
2. The user speaks, or calls tools of its own (telecom's phone) until it speaks; it is awaited
   here and never inside of the environment.
3. The policy is asked (`turnwise.conversation`). Its calls all run, in order; words beside them
   reach nobody. Words alone go to the user.
4. Solo, the call `done` ends it; else the user alone can, by a marker.

| what happens                                            | ending           | score            |
|---------------------------------------------------------|------------------|------------------|
| the user stops, or solo the agent                       | finished         | product of parts |
| `max_steps` or `max_turns`                              | stopped(turns)   | 0                |
| `max_errors` failed calls, a turn that says nothing,    | stopped(format)  | 0                |
| solo one without a call, `max_format_errors` in a row   |                  |                  |
| a turn is cut, or the context is full                   | stopped(tokens,  | 0                |
|                                                         | context)         |                  |
| engine, user or environment fails or misses its deadline | lost(boundary)  | none             |
| the judge of NL assertions fails                        | lost(judge)      | none             |
| the engine gives a turn back unfinished (`abort`)       | cancelled        | none             |

The judge is asked only where the reward hangs on it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from taubench.tau2 import (
    Call,
    Environment,
    Score,
    Termination,
    Turn,
    UserProtocolError,
    calls_from,
    messages_to_json,
    system_prompt,
)
from taubench.tau2.messages import Message
from taubench.tau2.shown import for_judge
from taubench.tau2.users import heard_by_user, read_turn
from turnwise.conversation import Conversation, Overflow
from turnwise.conversation import Turn as Sampled
from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit, crossing
from turnwise.judge import AssertionJudge
from turnwise.models.meter import Meter, metering
from turnwise.policy import AnyPolicy, EndpointPolicy
from turnwise.rollout import Rollout
from turnwise.users import ReplayedUser, ResumableUser, User, UserReply, check_message

from apps.trainers.tau.options import TauOptions
from apps.trainers.tau.tau2.jobs import Job, tools_of

AnswerT = TypeVar("AnswerT")
MakeUser = Callable[[], User]
ENDINGS: Mapping[Termination, Ending] = {
    Termination.USER_STOP: Ending.finished(),
    Termination.AGENT_STOP: Ending.finished(),
    Termination.MAX_STEPS: Ending.stopped(Limit.TURNS),
    Termination.TOO_MANY_ERRORS: Ending.stopped(Limit.FORMAT),
    Termination.AGENT_ERROR: Ending.stopped(Limit.FORMAT),
}


async def run_episode(
    rollout: Rollout[Job],
    policy: AnyPolicy,
    options: TauOptions,
    *,
    make_user: MakeUser,
    judge: AssertionJudge | None = None,
) -> Episode:
    """Plays one episode. Raises nothing on what the model wrote or a service did.

    Args:
        rollout: Its task is what the user wants.
        policy: Who is asked.
        options: The limits, and how is graded.
        make_user: Makes the user of this episode; none is made solo.
        judge: Tells NL assertions; without it they are taken as met.

    `Episode.metrics` has beside the conversation's `steps`, `tool_errors`, `user_replies`,
    `user_calls`, `user_s` in seconds, `part/NAME` of each component of the score,
    `overflow/tool` or `overflow/user` where a message of theirs did not fit, and what user and
    judge used (`turnwise.models.meter`). `info` has the names of user and tasks, the termination,
    what was missed, and with `keep_trajectory` the conversation in upstream's form.
    """
    task, solo = rollout.task.task, rollout.task.solo
    run = _Run(rollout, options, make_user, judge)
    talk = Conversation(
        policy,
        rollout,
        tools=tools_of(task.domain, task.task_set, solo),
        deadline_s=options.engine_deadline_s,
    )
    with metering() as used:
        try:
            async with talk:
                ending = await run.play(talk)
        except BoundaryError as error:
            ending = Ending.lost(error)
    return talk.episode(ending, run.reward, metrics=run.metrics(used), info=run.info(policy))


class _Run:
    """User, environment and counts of one episode under way."""

    def __init__(
        self,
        rollout: Rollout[Job],
        options: TauOptions,
        make_user: MakeUser,
        judge: AssertionJudge | None,
    ) -> None:
        self.reward = 0.0
        self._rollout, self._job, self._options = rollout, rollout.task, options
        self._make_user, self._judge = make_user, judge
        self._environment: Environment | None = None
        self._user: User | None = None
        self._user_name = ""
        self._score: Score | None = None
        self._counts: Counter[str] = Counter()
        self._unreadable = 0
        self._user_s = 0.0
        self._dropped = 0

    async def play(self, talk: Conversation) -> Ending:
        environment = await self._open(talk)
        most = self._options.max_turns
        while not environment.done:
            if most is not None and len(talk.turns) >= most:
                return Ending.stopped(Limit.TURNS)
            turn = await talk.ask()
            if isinstance(turn, Overflow):
                self._note_overflow(talk)
                return turn.ending
            if turn.ending is not None:
                return turn.ending
            await self._act(environment, turn, talk)
            if self._unreadable >= self._options.max_format_errors and not environment.done:
                return Ending.stopped(Limit.FORMAT)
            await self._user_part(environment, talk)
        assert environment.termination is not None
        ending = ENDINGS[environment.termination]
        if ending.kind == "finished":
            self.reward = await self._graded(environment)
        return ending

    async def _open(self, talk: Conversation) -> Environment:
        """The prompt and what the user says first."""
        task, solo, options = self._job.task, self._job.solo, self._options
        async with crossing(Boundary.ENVIRONMENT):
            environment = Environment(
                task, solo=solo, max_steps=options.max_steps, max_errors=options.max_errors
            )
            self._environment = environment
            system = system_prompt(task, solo=solo)
        talk.add({"role": "system", "content": system}, author="prompt")
        for message in _for_prompt(environment.seen_by_agent()):
            talk.add(message, author="prompt")
        if not solo:
            async with crossing(Boundary.USER):
                user = self._make_user()
                self._user_name = user.name
            replay = self._rollout.replay
            self._user = user if replay is None else ReplayedUser(user, replay)
            await self._open_user(environment, talk)
        return environment

    async def _open_user(self, environment: Environment, talk: Conversation) -> None:
        assert self._user is not None
        before = [one for one in environment.seen_by_user() if one.role != "tool" and one.has_text]
        if not await self._resumed(self._user, before):
            opening = await self._ask_user(self._user.reset(self._job.task))
            await self._user_says(environment, opening, talk)
        await self._user_part(environment, talk)

    async def _resumed(self, user: User, before: Sequence[Message]) -> bool:
        """Tells the user what was said before, where the task says that something was.

        Returns:
            Whether it goes on from there; one of rules does not, having said nothing of it.
        """
        places = [place for place, one in enumerate(before) if one.role == "user"]
        if not places or not isinstance(user, ResumableUser):
            return False
        opening, *later = [before[place].content or "" for place in places]
        heard = [before[place - 1].content for place in places[1:]]
        exchanges = [(words, UserReply(text)) for words, text in zip(heard, later, strict=True)]
        try:
            await self._ask_user(user.resume(self._job.task, opening, exchanges))
        except BoundaryError:
            return False
        return True

    async def _act(self, environment: Environment, turn: Sampled, talk: Conversation) -> None:
        """The agent's turn; its results go into the next prompt."""
        read = sum(not isinstance(call.arguments, str) for call in turn.calls)
        self._unreadable = self._unreadable + 1 if turn.errors and not read else 0
        calls = calls_from(
            [(call.name, call.arguments) for call in turn.calls],
            [error.message for error in turn.errors],
        )
        if len(calls) > 1 and self._options.several_calls == "first":
            self._dropped += len(calls) - 1
            calls = calls[:1]
        elif len(calls) > 1 and self._options.several_calls == "error":
            self._dropped += len(calls)
            calls = (Call("", error=f"one call at a time, got {len(calls)}; none was made"),)
        async with crossing(Boundary.ENVIRONMENT):
            result = environment.step(turn.content, calls)
        # None is made of a message that ends the episode.
        for call, answer in zip(calls, result.results, strict=not result.done):
            message = {"role": "tool", "name": call.name, "content": answer.content or ""}
            talk.add(message, author=f"tool:{call.name}")

    async def _user_part(self, environment: Environment, talk: Conversation) -> None:
        """The user, until the turn is the agent's or it is over."""
        while environment.turn is Turn.USER:
            assert self._user is not None
            reply = await self._ask_user(self._user.reply(heard_by_user(environment)))
            await self._user_says(environment, reply.text, talk)

    async def _user_says(self, environment: Environment, text: str, talk: Conversation) -> None:
        """Hands a message of the user on."""
        check_message(text)
        self._counts["user_replies"] += 1
        said = read_turn(text)
        try:
            async with crossing(Boundary.ENVIRONMENT):
                result = environment.user_step(said.content, said.calls)
        except BoundaryError as error:
            if isinstance(error.__cause__, UserProtocolError):
                raise BoundaryError(Boundary.USER, f"{self._user_name}: {error}") from error
            raise
        self._counts["user_calls"] += len(said.calls)
        if said.calls or environment.done:
            talk.note({"role": "user", "content": text}, author=self._user_name)
        else:
            spoken = {"role": "user", "content": said.content or ""}
            talk.add(spoken, author=self._user_name)
        for call, answer in zip(said.calls, result.results, strict=True):
            shown = {"role": "tool", "name": call.name, "content": answer.content or ""}
            talk.note(shown, author=f"{self._user_name}:{call.name}")

    async def _ask_user(self, answer: Awaitable[AnswerT]) -> AnswerT:
        started = time.perf_counter()
        try:
            async with crossing(Boundary.USER, deadline_s=self._options.message_deadline_s):
                return await answer
        finally:
            self._user_s += time.perf_counter() - started

    async def _graded(self, environment: Environment) -> float:
        """The reward. Raises BoundaryError where the judge can't tell."""
        async with crossing(Boundary.ENVIRONMENT):
            score = environment.evaluate(strict=self._options.strict)
        if score.needs_nl:
            criteria = self._job.task.criteria
            assert criteria is not None
            score = score.with_nl(await self._met(environment, criteria.nl_assertions))
        self._score = score
        assert score.reward is not None
        return score.reward

    async def _met(self, environment: Environment, assertions: Sequence[str]) -> Sequence[bool]:
        judge, replay = self._judge, self._rollout.replay
        if judge is None:
            return [True] * len(assertions)
        conversation = for_judge(environment.history)

        async def ask() -> list[bool]:
            async with crossing(Boundary.JUDGE):
                return list(await judge.check(conversation, assertions))

        if replay is None:
            return await ask()
        found: list[bool] = await replay.call("judge", list(assertions), ask)
        return found

    def _note_overflow(self, talk: Conversation) -> None:
        """Whose message it was that did not fit; the ending is the policy's either way."""
        author = str(talk.messages[-1]["author"]) if talk.messages else ""
        if author not in ("policy", "prompt"):
            role = "tool" if author.startswith("tool:") else "user"
            self._counts[f"overflow/{role}"] += 1

    def metrics(self, used: Meter) -> dict[str, float]:
        environment, score = self._environment, self._score
        parts = {} if score is None else score.components
        return {
            **dict.fromkeys(("user_replies", "user_calls"), 0.0),
            **{name: float(count) for name, count in self._counts.items()},
            "steps": float(environment.steps) if environment else 0.0,
            "tool_errors": float(environment.errors) if environment else 0.0,
            "dropped_calls": float(self._dropped),
            "user_s": self._user_s,
            **{f"part/{name}": value for name, value in parts.items() if value is not None},
            **used.metrics(),
        }

    def info(self, policy: AnyPolicy) -> dict[str, Any]:
        task, environment = self._job.task, self._environment
        facts: dict[str, Any] = {"user": self._user_name, "task": task.key, "solo": self._job.solo}
        if isinstance(policy, EndpointPolicy):
            facts["model"] = policy.client.config.model
        if self._score is not None:
            facts["missed"] = missed(self._score)
        if environment is None:
            return facts
        termination = environment.termination
        facts["termination"] = None if termination is None else termination.value
        if self._options.keep_trajectory:
            facts["trajectory"] = messages_to_json(environment.history)
        return facts


def missed(score: Score) -> list[str]:
    """What of a score's parts is not met, for people."""
    checks = (*score.assertions, *score.actions, *score.communicated, *score.nl_assertions)
    found = [str(check.what) for check in checks if check.met is False]
    return [*(["the database"] if score.components.get("DB") == 0 else []), *found]


def _for_prompt(history: Sequence[Message]) -> list[dict[str, Any]]:
    """What came before the first turn, OpenAI-style."""
    names: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    for message in history:
        row: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.role == "tool":
            row |= {"name": names.get(message.id, ""), "tool_call_id": message.id}
        if message.calls:
            names |= {call.id: call.name for call in message.calls}
            row["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for call in message.calls
            ]
        rows.append(row)
    return rows

"""One ToolOrchestra episode with a customer of τ²-bench: the function-call path.

1. The prompt is τ²'s with the policy document, and what `call_expert` is; the tools are the
   domain's and `call_expert`, whose experts and prices are the row's.
2. In each turn the policy makes a call of the domain, or speaks to the customer, or hands the turn
   to an expert. The expert is shown the conversation as the customer's agent sees it, with the
   domain's tools, and its native calls or words are taken as the agent's.
3. Calls run in this process (`taubench.tau2`); the customer answers words, and ends the episode.
4. Right is an episode whose τ² reward is 1. Groups are compared as those of questions are.

Deviations from the public code: no process, file or poll stands between the two sides; an expert's
thoughts never reach the customer; neither policy nor expert can transfer to a human and be done
with it, unless `transfer` says so; a failing expert or customer loses the episode, and no stock
sentence takes their place.

| what happens                                             | ending           | right?          |
|----------------------------------------------------------|------------------|-----------------|
| the customer stops                                       | finished         | by τ²'s reward  |
| `max_turns` turns, or `customer_steps` steps of τ²       | stopped(turns)   | no              |
| a turn that says nothing, τ²'s limit of failed calls,    | stopped(format)  | no              |
| `max_retries` + 1 unreadable turns                       |                  |                 |
| a turn is cut, or the context is full                    | stopped(tokens, context) | no      |
| engine, expert, customer, environment or judge fails     | lost(boundary)   |                 |
| the engine gives a turn back unfinished (`abort`)        | cancelled        |                 |
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from taubench.tau2 import (
    Call,
    Environment,
    Termination,
    UserProtocolError,
    calls_from,
    system_prompt,
)
from taubench.tau2 import Turn as Side
from taubench.tau2.messages import Message
from taubench.tau2.shown import for_judge
from taubench.tau2.users import read_turn, tool_results, words_of_agent
from turnwise.conversation import Conversation, Overflow, Turn
from turnwise.conversation.clock import play_within
from turnwise.episode import (
    Boundary,
    BoundaryError,
    Ending,
    Episode,
    Limit,
    crossing,
)
from turnwise.judge import AssertionJudge
from turnwise.models import Act, without_scratchpad
from turnwise.policy import AnyPolicy
from turnwise.printable import cut_middle
from turnwise.rollout import Rollout, derive_seed
from turnwise.users import ReplayedUser, User, check_message

from apps.trainers.toolorchestra.account import Account, Called
from apps.trainers.toolorchestra.customer_task import (
    CustomerTask,
    customer_system,
    customer_tools,
    domain_tools,
)
from apps.trainers.toolorchestra.experts import Experts
from apps.trainers.toolorchestra.history import History
from apps.trainers.toolorchestra.options import ToolOrchestraOptions
from apps.trainers.toolorchestra.prompts import CALL_EXPERT, EXPERT
from apps.trainers.toolorchestra.reward import utility
from apps.trainers.toolorchestra.tables import Expert

AnswerT = TypeVar("AnswerT")
ENDINGS: Mapping[Termination, Ending] = {
    Termination.USER_STOP: Ending.finished(),
    Termination.AGENT_STOP: Ending.finished(),
    Termination.MAX_STEPS: Ending.stopped(Limit.TURNS),
    Termination.TOO_MANY_ERRORS: Ending.stopped(Limit.FORMAT),
    Termination.AGENT_ERROR: Ending.stopped(Limit.FORMAT),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Who serves the customers of a run.

    Attributes:
        experts: By the names that tables call them.
        make_user: Makes the customer of a domain.
        judge: Tells NL assertions; without it they are taken as met, and `assumed_assertions`
            counts them.
    """

    experts: Experts
    make_user: Callable[[str], User]
    judge: AssertionJudge | None = None


async def run_customer(
    rollout: Rollout[CustomerTask], policy: AnyPolicy, desk: Desk, options: ToolOrchestraOptions
) -> Episode:
    """Plays one episode. Raises nothing on what a model wrote or a service did.

    Metrics and info are those of `apps.trainers.toolorchestra.episode`, with τ²'s reward.
    """
    talk = Conversation(
        policy,
        rollout,
        tools=customer_tools(rollout.task, transfer=options.transfer),
        deadline_s=options.engine_deadline_s,
    )
    run = _Run(talk, rollout, desk, options)
    async with talk:
        ending = await play_within(options.wall_s, run.play, lambda: run.waiting_for)
    return talk.episode(ending, run.score(), metrics=run.metrics(), info=run.info())


class _Run:
    """Customer, environment and counts of one episode."""

    def __init__(
        self,
        talk: Conversation,
        rollout: Rollout[CustomerTask],
        desk: Desk,
        options: ToolOrchestraOptions,
    ) -> None:
        self.talk, self.rollout, self.task = talk, rollout, rollout.task
        self.desk, self.options = desk, options
        self.environment = Environment(rollout.task.task, max_steps=options.customer_steps)
        self.history = History(talk, self._opening(), turn_room=options.turn_room)
        self.account = Account(self.task.experts, options)
        self.counts: Counter[str] = Counter()
        self.reward: float | None = None
        self.said = ""
        self.waiting_for = Boundary.USER
        self._unreadable = 0
        self._user: User | None = None

    def _opening(self) -> list[dict[str, Any]]:
        system = {"role": "system", "content": customer_system(self.task)}
        return [system, *_openai(self.environment.seen_by_agent())]

    async def play(self) -> Ending:
        environment = self.environment
        await self._open_customer()
        for _ in range(self.options.max_turns):
            if environment.done:
                break
            self.waiting_for = Boundary.ENGINE
            turn = await self.history.ask()
            if isinstance(turn, Overflow) or turn.ending is not None:
                ending = turn.ending
                assert ending is not None
                return ending
            await self._act(turn)
            if self._unreadable > self.options.max_retries and not environment.done:
                return Ending.stopped(Limit.FORMAT)
            await self._customer_part()
        if not environment.done:
            return Ending.stopped(Limit.TURNS)
        assert environment.termination is not None
        ending = ENDINGS[environment.termination]
        if ending.kind == "finished":
            self.reward = await self._graded()
        return ending

    async def _act(self, turn: Turn) -> None:
        """The policy's turn: a call of the domain, words, or an expert's turn in its place."""
        read = sum(not isinstance(call.arguments, str) for call in turn.calls)
        self._unreadable = self._unreadable + 1 if turn.errors and not read else 0
        self.counts["malformed"] += bool(turn.errors) and not read
        self.counts["dropped_calls"] += max(0, len(turn.calls) - 1)
        first = turn.calls[0] if turn.calls else None
        if first is not None and first.name == CALL_EXPERT:
            await self._hand_over(first.arguments)
            return
        calls = calls_from(
            [(call.name, call.arguments) for call in turn.calls[:1]],
            [error.message for error in turn.errors],
        )
        self._step(turn.content, calls)

    def _step(self, content: str, calls: Sequence[Call]) -> Sequence[tuple[Call, str]]:
        """Takes a message as the agent's; shows the policy what its calls gave."""
        shown = self._taken(content, calls)
        for call, text in shown:
            message = {"role": "tool", "name": call.name, "content": text}
            self.history.add_result(message, author=f"tool:{call.name}"[:80])
        return shown

    def _taken(self, content: str, calls: Sequence[Call]) -> list[tuple[Call, str]]:
        self.said = content
        try:
            result = self.environment.step(content, tuple(calls))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise BoundaryError(Boundary.ENVIRONMENT, what) from error
        # None is made of a message that ends the episode.
        return [
            (call, answer.content or "")
            for call, answer in zip(calls, result.results, strict=not result.done)
        ]

    async def _hand_over(self, arguments: Mapping[str, Any] | str) -> None:
        """An expert's turn in the policy's place; the policy is told what it did."""
        role = None if isinstance(arguments, str) else arguments.get(EXPERT)
        expert = next((one for one in self.task.experts if one.role == role), None)
        if expert is None:
            self.counts["unknown_calls"] += 1
            roles = ", ".join(one.role for one in self.task.experts)
            self._show(f"Nothing was done: there is no expert of that name, but {roles}.")
            return
        self.waiting_for = Boundary.ENGINE
        started = time.perf_counter()
        act = await self._ask_expert(expert)
        words = without_scratchpad(act.text)
        failed = None if words.strip() or act.calls else "empty"
        self.account.calls.append(
            Called(
                tool=expert.tool,
                role=expert.role,
                model=expert.model,
                read_tokens=act.read_tokens,
                written_tokens=act.written_tokens,
                usd=expert.price(act.read_tokens, act.written_tokens),
                seconds=time.perf_counter() - started,
                failed=failed,
            )
        )
        note = {"role": "tool", "name": expert.role, "content": act.text or str(act.calls)}
        self.talk.note(note, author=f"expert:{expert.role}")
        if failed is not None:
            self.counts["failed_calls"] += 1
            self._show("The expert neither said nor called anything.")
            return
        done = self._taken(words, calls_from(act.calls))
        told = [f"Called {call.name}({json.dumps(dict(call.arguments))}): {t}" for call, t in done]
        self._show("\n".join(told) if act.calls else f"Said to the customer: {words}")

    async def _ask_expert(self, expert: Expert) -> Act:
        seed = derive_seed(self.rollout.seed, "tool", len(self.account.calls))
        system = {"role": "system", "content": system_prompt(self.task.task)}
        messages = [system, *_openai(self.environment.seen_by_agent())]
        tools = domain_tools(self.task.task, transfer=self.options.transfer)

        async def make() -> dict[str, Any]:
            async with crossing(Boundary.ENGINE):
                return asdict(await self.desk.experts.act(expert.model, messages, tools, seed=seed))

        replay = self.rollout.replay
        if replay is None:
            row = await make()
        else:
            asked = {"role": expert.role, "messages": len(messages)}
            row = await replay.call("expert", asked, make)
        calls = tuple((name, arguments) for name, arguments in row["calls"])
        return Act(**{**row, "calls": calls})

    async def _open_customer(self) -> None:
        if self.environment.turn is not Side.USER:
            return
        async with crossing(Boundary.USER):
            user = self.desk.make_user(self.task.task.domain)
        replay = self.rollout.replay
        self._user = user if replay is None else ReplayedUser(user, replay)
        opening = await self._ask_customer(self._user.reset(self.task.task))
        heard = tool_results(self._customer_says(opening))
        await self._customer_part(heard)

    async def _customer_part(self, heard: str | None = None) -> None:
        """The customer, until the turn is the agent's or it is over."""
        if heard is None:
            heard = words_of_agent(self.said)
        while self.environment.turn is Side.USER:
            assert self._user is not None
            reply = await self._ask_customer(self._user.reply(heard))
            heard = tool_results(self._customer_says(reply.text))

    def _customer_says(self, text: str) -> Sequence[Message]:
        """Hands a message of the customer on; the results of its own calls."""
        check_message(text)
        said = read_turn(text)
        try:
            result = self.environment.user_step(said.content, said.calls)
        except UserProtocolError as error:
            raise BoundaryError(Boundary.USER, str(error)) from error
        self.counts["user_replies"] += 1
        if said.calls or self.environment.done:
            self.talk.note({"role": "user", "content": text}, author="customer")
        else:
            self.history.add({"role": "user", "content": said.content or ""}, author="customer")
        return result.results

    async def _ask_customer(self, answer: Awaitable[AnswerT]) -> AnswerT:
        self.waiting_for = Boundary.USER
        async with crossing(Boundary.USER, deadline_s=self.options.customer_deadline_s):
            return await answer

    async def _graded(self) -> float:
        """τ²'s reward. Raises BoundaryError where the judge can't tell."""
        self.waiting_for = Boundary.JUDGE
        async with crossing(Boundary.ENVIRONMENT):
            score = self.environment.evaluate()
        criteria = self.task.task.criteria
        if score.needs_nl and criteria is not None:
            assertions = criteria.nl_assertions
            met: Sequence[bool] = [True] * len(assertions)
            if self.desk.judge is None:
                self.counts["assumed_assertions"] += len(assertions)
            else:
                async with crossing(Boundary.JUDGE):
                    shown = for_judge(self.environment.history)
                    met = await self.desk.judge.check(shown, assertions)
            score = score.with_nl(met)
        assert score.reward is not None
        return score.reward

    def _show(self, text: str) -> None:
        plain = cut_middle(self.talk.markers.plain(text), self.options.result_characters)
        message = {"role": "tool", "name": CALL_EXPERT, "content": plain}
        self.history.add_result(message, author=f"tool:{CALL_EXPERT}")

    @property
    def correct(self) -> bool:
        return self.reward == 1.0

    def score(self) -> float:
        """The episode's own worth; left out where the ending is not the policy's."""
        outcome = self.account.outcome(self.correct, self.talk.counts)
        task = self.task
        return utility(outcome, task.preferences, task.experts, task.budget)

    def metrics(self) -> dict[str, float]:
        """Beside those of the conversation."""
        named = ("malformed", "unknown_calls", "failed_calls", "dropped_calls", "user_replies")
        return {
            "correct": float(self.correct),
            "utility": self.score(),
            **self.account.metrics(self.talk.counts),
            **dict.fromkeys(named, 0.0),
            **{name: float(count) for name, count in self.counts.items()},
            "steps": float(self.environment.steps),
            "shortened": float(self.history.shortened),
        }

    def info(self) -> dict[str, Any]:
        """Facts for the trace, from which a group is scored."""
        task, termination = self.task, self.environment.termination
        return {
            "orchestra": {
                **self.account.outcome(self.correct, self.talk.counts).row(),
                "made": self.account.rows(),
                "reward": self.reward,
                "termination": None if termination is None else termination.value,
                "task": task.task.key,
                "preferences": dict(task.preferences),
                "experts": [expert.model_dump() for expert in task.experts],
            }
        }


def _openai(history: Sequence[Message]) -> list[dict[str, Any]]:
    """A conversation as endpoints and templates take it; arguments of calls are JSON text."""
    rows: list[dict[str, Any]] = []
    for message in history:
        row: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.role == "tool":
            row["tool_call_id"] = message.id
        if message.calls:
            row["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
                }
                for call in message.calls
            ]
        rows.append(row)
    return rows

"""One ToolOrchestra episode on a question: the loop for training and evaluation, on every backend.

After Su et al. 2025 (ToolOrchestra, arXiv:2511.21689), in the form that trains on slime:

1. The policy is shown the question, the row's experts with their prices, and what its asker
   prefers.
2. In each turn it calls one tool with one expert (`apps.trainers.toolorchestra.tools`); what that
   brings stands in the next prompt and is shown to the experts that are asked later.
3. `answer` ends the episode: the expert's answer is graded, by the rule and then by the judge.
4. The members of a group are compared by `apps.trainers.toolorchestra.reward`.

Deviations from the paper and the code that came with it:
1. The history grows and is trained as it was sampled, turn after turn, in one segment; the paper's
   state is a new prompt each turn. One that no longer fits is shortened by rule
   (`apps.trainers.toolorchestra.history`), which begins another segment.
2. Only the answer is graded. An episode without one, or with an empty one, is wrong; nothing else
   of it is ever compared with the truth.
3. A failing expert, search, sandbox or judge loses the episode. It is not told to the policy, asked
   of a search or graded.
4. Preferences reward what is saved and never a call (`apps.trainers.toolorchestra.reward`).
5. A turn that names no tool can be answered with what is wrong (`on_malformed`).

| what happens                                               | ending           | right?      |
|------------------------------------------------------------|------------------|-------------|
| an expert of `answer` has answered                         | finished         | by verdict  |
| `max_turns` turns and no answer                            | stopped(turns)   | no          |
| a turn is cut at its own limit                             | stopped(tokens)  | no          |
| a turn is cut by the context, or nothing is left to leave out | stopped(context) | no       |
| a turn names no tool: `stop`; `retry` after `max_retries`  | stopped(format)  | no          |
| the engine gives a turn back unfinished (`abort`)          | cancelled        |             |
| the policy's engine, an expert, the search, sandbox or judge fails | lost(boundary) |       |
| `wall_s` seconds                                           | lost(boundary)   |             |
| the first prompt does not fit                              | lost(environment) |            |

The score is the utility of `apps.trainers.toolorchestra.reward`: 0 for a wrong episode, and 1 for a
right one of a row without budget; `group_scores` compares the members of a group in training. A
tool or an expert that does not exist is a result that says so, which costs the turn alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

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
from turnwise.judge import Verdict
from turnwise.policy import AnyPolicy
from turnwise.rollout import Rollout, derive_seed

from apps.trainers.toolorchestra.account import Account
from apps.trainers.toolorchestra.history import History
from apps.trainers.toolorchestra.options import ToolOrchestraOptions
from apps.trainers.toolorchestra.prompts import (
    Choice,
    Malformed,
    opening,
    read_turn,
    result,
    tools,
)
from apps.trainers.toolorchestra.reward import utility
from apps.trainers.toolorchestra.tables import Expert
from apps.trainers.toolorchestra.task import Task
from apps.trainers.toolorchestra.tools import Done, Tools, read_done

REPLAYED = "tool"
"""What `turnwise.replay` calls the tools of an episode."""


class Grader(Protocol):
    """Compares an answer with the truth, as `turnwise.judge.Judge` does."""

    async def grade(self, question: str, answer: str, truth: str) -> Verdict:
        """The verdict; one that is unknown loses the episode."""
        ...


@dataclass(frozen=True, slots=True)
class Served:
    """Who serves the episodes of a run: tools with their experts, and the judge."""

    tools: Tools
    judge: Grader


async def run_episode(
    rollout: Rollout[Task], policy: AnyPolicy, served: Served, options: ToolOrchestraOptions
) -> Episode:
    """Plays one episode. Raises nothing on what a model wrote or a service did.

    `Episode.metrics` has beside the conversation's `correct`, `utility`, those of
    `Account.metrics`, and counts; `info` has `orchestra`: the outcome, every call, the answer with
    its verdict, the experts and preferences.
    """
    talk = Conversation(
        policy,
        rollout,
        tools=tools(rollout.task.experts, options.prompt),
        specials="escape",
        deadline_s=options.engine_deadline_s,
    )
    run = _Run(talk, rollout, served, options)
    async with talk:
        ending = await play_within(options.wall_s, run.play, lambda: run.waiting_for)
    return talk.episode(ending, run.score(), metrics=run.metrics(), info=run.info())


class _Run:
    """State of one episode."""

    def __init__(
        self,
        talk: Conversation,
        rollout: Rollout[Task],
        served: Served,
        options: ToolOrchestraOptions,
    ) -> None:
        self.talk, self.rollout, self.task = talk, rollout, rollout.task
        self.served, self.options = served, options
        first = opening(self.task, options.prompt)
        plain = [{**one, "content": talk.markers.plain(one["content"])} for one in first]
        self.history = History(talk, plain, turn_room=options.turn_room)
        self.account = Account(self.task.experts, options)
        self.found: list[str] = []
        self.answer = ""
        self.verdict: Verdict | None = None
        self.waiting_for = Boundary.ENVIRONMENT
        self.counts: Counter[str] = Counter()

    async def play(self) -> Ending:
        for _ in range(self.options.max_turns):
            self.waiting_for = Boundary.ENGINE
            turn = await self.history.ask()
            if isinstance(turn, Overflow):
                self._check_first(turn)
                return turn.ending
            if turn.ending is not None:
                return turn.ending
            choice = read_turn(turn, self.options.prompt)
            self.counts["dropped_calls"] += max(0, len(turn.calls) - 1)
            if isinstance(choice, Malformed):
                if not self._answer_malformed(choice, turn):
                    return Ending.stopped(Limit.FORMAT)
                continue
            if await self._take(choice):
                return Ending.finished()
        return Ending.stopped(Limit.TURNS)

    def _check_first(self, overflow: Overflow) -> None:
        """Raises BoundaryError if it was the question that did not fit."""
        if self.talk.turns:
            return
        has = "a longer context"
        if overflow.limit:
            has = f"a context of more than {overflow.limit} tokens: it takes {overflow.needed}"
        raise BoundaryError(Boundary.ENVIRONMENT, f"the question with its experts needs {has}")

    def _answer_malformed(self, problem: Malformed, turn: Turn) -> bool:
        """Whether the episode goes on after a turn that names no tool."""
        self.counts["malformed"] += 1
        self.counts[f"malformed/{problem.kind}"] += 1
        options = self.options
        if options.on_malformed == "stop" or self.counts["retries"] >= options.max_retries:
            return False
        self.counts["retries"] += 1
        words = f"Nothing was done: {problem.message}."
        if turn.calls:
            self._show(turn.calls[0].name, words)
        else:
            self.history.add_result({"role": "user", "content": words}, author="prompt")
        return True

    async def _take(self, choice: Choice) -> bool:
        """Does what was chosen; whether that was the answer."""
        expert = self._expert(choice)
        if expert is None:
            return False
        done = await self._run(expert)
        self.account.calls.append(done.called)
        self.counts["expert_cut"] += done.cut
        if done.called.failed is not None:
            self.counts["failed_calls"] += 1
            self.counts[f"failed_calls/{done.called.failed}"] += 1
        plain = self.talk.markers.plain
        note = {"role": "tool", "name": expert.role, "content": plain(done.said)}
        self.talk.note(note, author=f"expert:{expert.role}")
        if expert.tool == "answer":
            self.answer = done.text
            await self._grade()
            return True
        text = plain(done.text)
        if done.called.failed is None:
            self._keep(text)
        self._show(expert.tool, text)
        return False

    def _expert(self, choice: Choice) -> Expert | None:
        """The expert that a turn names; the policy is told where there is none."""
        offered = self.task.of(choice.tool)
        for expert in offered:
            if expert.role == choice.role:
                return expert
        self.counts["unknown_calls"] += 1
        if offered:
            roles = ", ".join(expert.role for expert in offered)
            words = f"Nothing was done: {choice.tool} has no expert of that name, but {roles}."
        else:
            known = ", ".join(dict.fromkeys(expert.tool for expert in self.task.experts))
            words = f"Nothing was done: there is no tool of that name, but {known}."
        self._show(choice.tool, words)
        return None

    async def _run(self, expert: Expert) -> Done:
        self.waiting_for = Boundary.TOOL_SERVER
        number = len(self.account.calls)
        seed = derive_seed(self.rollout.seed, "tool", number)

        async def make() -> dict[str, Any]:
            done = await self.served.tools.run(expert, self.task, self.found, seed=seed)
            return done.row()

        replay = self.rollout.replay
        if replay is None:
            return read_done(await make())
        asked = {"role": expert.role, "number": number, "found": len(self.found)}
        return read_done(await replay.call(REPLAYED, asked, make))

    async def _grade(self) -> None:
        self.waiting_for = Boundary.JUDGE
        async with crossing(Boundary.JUDGE):
            self.verdict = await self.served.judge.grade(
                self.task.question, self.answer, self.task.answer
            )
            self.verdict.score()

    def _keep(self, text: str) -> None:
        """Adds to what experts are shown; the oldest goes where it becomes too much."""
        self.found.append(text)
        while len(self.found) > 1 and sum(map(len, self.found)) > self.options.context_characters:
            self.found.pop(0)
            self.counts["found_dropped"] += 1

    def _show(self, tool: str, text: str) -> None:
        message = result(tool, self.talk.markers.plain(text), self.options.prompt)
        self.history.add_result(message, author=f"tool:{tool}"[:80])

    @property
    def correct(self) -> bool:
        return self.verdict is not None and self.verdict.correct is True

    def score(self) -> float:
        """The episode's own worth; left out where the ending is not the policy's."""
        outcome = self.account.outcome(self.correct, self.talk.counts)
        task = self.task
        return utility(outcome, task.preferences, task.experts, task.budget)

    def metrics(self) -> dict[str, float]:
        """Beside those of the conversation."""
        named = ("malformed", "retries", "unknown_calls", "failed_calls", "dropped_calls")
        return {
            "correct": float(self.correct),
            "utility": self.score(),
            **self.account.metrics(self.talk.counts),
            **dict.fromkeys((*named, "expert_cut", "found_dropped"), 0.0),
            **{name: float(count) for name, count in self.counts.items()},
            "shortened": float(self.history.shortened),
        }

    def info(self) -> dict[str, Any]:
        """Facts for the trace, from which a group is scored."""
        task = self.task
        facts: Mapping[str, Any] = {
            **self.account.outcome(self.correct, self.talk.counts).row(),
            "made": self.account.rows(),
            "answer": self.answer,
            "verdict": None if self.verdict is None else self.verdict.row(),
            "preferences": dict(task.preferences),
            "experts": [expert.model_dump() for expert in task.experts],
        }
        return {"orchestra": dict(facts)}

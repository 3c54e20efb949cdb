"""Scripted models, tools and judges, and short ways to play an episode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field
from turnwise.engine.scripted import Reply
from turnwise.episode import Episode
from turnwise.judge import Verdict
from turnwise.models import Answer
from turnwise.policy import Policy
from turnwise.rollout import Rollout
from turnwise.rows import Row
from turnwise.testing import ScriptedEngine, byte_policy, say

from apps.trainers.agentflow.config import AgentFlowOptions
from apps.trainers.agentflow.episode import run_episode
from apps.trainers.agentflow.helpers import Helpers
from apps.trainers.agentflow.prompts import make_prompts
from apps.trainers.agentflow.question import Question
from apps.trainers.agentflow.toolbox import Toolbox
from apps.trainers.agentflow.tools.tool import Tool, ToolArguments, ToolParts, ToolResult

QUESTION = Question("What is 6 times 7?", "42")
STOP, CONTINUE = "It is all there.\nConclusion: STOP", "Not yet.\nConclusion: CONTINUE"


def policy(
    *turns: str | Reply, max_context_tokens: int = 16_384, max_new_tokens: int = 1_024
) -> tuple[Policy, ScriptedEngine]:
    engine = ScriptedEngine([say(turn) if isinstance(turn, str) else turn for turn in turns])
    made = byte_policy(engine, context=max_context_tokens, max_new_tokens=max_new_tokens)
    return made, engine


def step(tool: str = "calculator", sub_goal: str = "Multiply 6 by 7.") -> str:
    """A next step that keeps the contract."""
    return (
        f"Justification: it has to be computed\nContext: 6 and 7\nSub-Goal: {sub_goal}\n"
        f"Tool Name: {tool}"
    )


@dataclass
class Model:
    """Says what it is told: a text, an exception to raise, seconds to wait; the last one again.

    Attributes:
        prompts: What it was asked, in order; `seeds` with which seed.
    """

    name: str
    answers: Sequence[Any]
    tokens: tuple[int, int] = (10, 5)
    finish: str = "stop"
    prompts: list[str] = field(default_factory=list)
    seeds: list[int | None] = field(default_factory=list)

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Answer:
        (message,) = messages
        self.prompts.append(message["content"])
        self.seeds.append(seed)
        answer = self.answers[min(len(self.prompts), len(self.answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            answer = "late"
        return Answer(answer, *self.tokens, self.finish)


@dataclass
class Judge:
    """Right if the truth is in the answer; or what it is told: a verdict, an exception, seconds."""

    verdict: Any = None
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    async def grade(self, question: str, answer: str, truth: str) -> Verdict:
        self.asked.append((question, answer, truth))
        if isinstance(self.verdict, Exception):
            raise self.verdict
        if isinstance(self.verdict, float):
            await asyncio.sleep(self.verdict)
        if isinstance(self.verdict, Verdict):
            return self.verdict
        return Verdict(truth in answer, "rule")


class Scripted(Tool):
    """A tool that gives back what it is told."""

    name = "calculator"
    description = "Does sums."

    class Arguments(ToolArguments):
        query: str = Field(max_length=500, description="The sum.")

    def __init__(self, *results: Any) -> None:
        self.results = results or ("42",)
        self.calls: list[Any] = []

    @classmethod
    def build(cls, parts: ToolParts) -> Scripted:
        return cls()

    @property
    def limits(self) -> tuple[str, ...]:
        return ("Whole numbers below 7,000 alone.",)

    async def run(self, arguments: Any, *, seed: int) -> ToolResult:
        self.calls.append(arguments)
        result = self.results[min(len(self.calls), len(self.results)) - 1]
        if isinstance(result, BaseException):
            raise result
        if isinstance(result, float):
            await asyncio.sleep(result)
        return result if isinstance(result, ToolResult) else ToolResult(str(result))


class Oracle(Scripted):
    """A second tool."""

    name = "oracle"
    description = "Knows."


def helpers(
    *,
    executor: Iterable[Any] = ('```json\n{"query": "6*7"}\n```',),
    verifier: Iterable[Any] = (STOP,),
    final: Iterable[Any] = (r"It is \boxed{42}.",),
    tools: Sequence[Tool] = (),
    judge: Any = None,
    prompt: str = "full",
) -> Helpers:
    """Everything scripted; by default the first step is enough and the answer right."""
    return Helpers(
        executor=Model("executor", list(executor)),
        verifier=Model("verifier", list(verifier)),
        final=Model("final", list(final)),
        toolbox=Toolbox(tools or [Scripted(), Oracle()]),
        judge=judge or Judge(),
        prompts=make_prompts(prompt),
    )


def options(**given: Any) -> AgentFlowOptions:
    """Options of the loop; who helps is not theirs here."""
    return AgentFlowOptions(**{"helpers": "rules", **given})


def rollout(question: Question = QUESTION, seed: int = 5, **changes: Any) -> Rollout[Question]:
    """An episode of the question."""
    names = {"task_id": "maths/1", "rollout_id": "r1", "group_id": "g1"}
    return Rollout(task=question, seed=seed, **{**names, **changes})


def row(question: Question, **changes: Any) -> Row:
    """The question as it stands in a data file."""
    return Row(**{"prompt": question.text, "label": question.answer, **changes})


async def play(
    *turns: str | Reply,
    question: Question = QUESTION,
    seed: int = 5,
    limits: Mapping[str, Any] | None = None,
    given: Helpers | None = None,
    **changes: Any,
) -> tuple[Episode, ScriptedEngine]:
    """The episode of these planner turns; `changes` are of `options` or, without `given`, of
    `helpers`."""
    made, engine = policy(*turns, **(limits or {}))
    ours = {name: value for name, value in changes.items() if name in AgentFlowOptions.model_fields}
    ours = {name: value for name, value in ours.items() if name not in _HELPERS}
    scripted = {name: value for name, value in changes.items() if name not in ours}
    episode = await run_episode(
        rollout(question, seed), made, given or helpers(**scripted), options(**ours)
    )
    return episode, engine


_HELPERS = ("executor", "verifier", "final", "tools", "judge", "prompt")

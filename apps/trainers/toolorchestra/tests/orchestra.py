"""Experts, a search and a judge that say what they are told, and short ways to play an episode."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from turnwise.engine.scripted import Reply
from turnwise.episode import Episode
from turnwise.judge import Verdict
from turnwise.models import Answer
from turnwise.retrieval import Document
from turnwise.rollout import Rollout
from turnwise.testing import ScriptedEngine, byte_policy, call, say

from apps.trainers.toolorchestra.episode import Served, run_episode
from apps.trainers.toolorchestra.experts import AnswerCache, Experts
from apps.trainers.toolorchestra.options import ToolOrchestraOptions
from apps.trainers.toolorchestra.tables import Budget, Expert
from apps.trainers.toolorchestra.task import Task
from apps.trainers.toolorchestra.tools import Tools

TABLE = (
    Expert(role="search-1", tool="search", model="small", read_price=1, write_price=2),
    Expert(role="reasoner-1", tool="enhance_reasoning", model="small", read_price=1, write_price=2),
    Expert(role="answer-1", tool="answer", model="small", read_price=1, write_price=2),
    Expert(role="answer-2", tool="answer", model="large", read_price=10, write_price=40),
)
TASK = Task(
    question="What is 6 times 7?",
    answer="42",
    experts=TABLE,
    preferences={"accuracy": 1.0, "cost": 0.5},
    budget=Budget(cost=0.01),
)
QUERY = "<query>six times seven</query>"
OPTIONS = ToolOrchestraOptions(run_code=False, policy_read_price=0, policy_write_price=0)


def use(tool: str, expert: str) -> str:
    """A turn that calls a tool with an expert."""
    return call(tool, expert=expert)


@dataclass
class Model:
    """Says what it is told: a text, an exception to raise, seconds to wait; the last one again.

    Attributes:
        prompts: What it was asked, in order; `seeds` with which seed.
    """

    name: str
    answers: Sequence[Any]
    tokens: tuple[int, int] = (100, 20)
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
class Search:
    """Finds what it is told, or raises it."""

    found: Any = ()
    queries: list[tuple[str, int, str | None]] = field(default_factory=list)

    async def search(self, query: str, *, k: int, eid: str | None = None) -> list[Document]:
        self.queries.append((query, k, eid))
        if isinstance(self.found, BaseException):
            raise self.found
        return list(self.found)

    async def check(self) -> None:
        return None

    def metrics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        return None


@dataclass
class Judge:
    """Right if the truth is in the answer; or what it is told: a verdict or an exception."""

    verdict: Any = None
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    async def grade(self, question: str, answer: str, truth: str) -> Verdict:
        self.asked.append((question, answer, truth))
        if isinstance(self.verdict, Exception):
            raise self.verdict
        if isinstance(self.verdict, Verdict):
            return self.verdict
        return Verdict(truth in answer, "rule")


@dataclass
class Cast:
    """Who serves an episode."""

    small: Model = field(default_factory=lambda: Model("small", ["The answer is \\boxed{41}."]))
    large: Model = field(default_factory=lambda: Model("large", ["The answer is \\boxed{42}."]))
    search: Search = field(default_factory=Search)
    judge: Judge = field(default_factory=Judge)
    sandbox: Any = None
    cache: AnswerCache | None = None

    def served(self, options: ToolOrchestraOptions) -> Served:
        models = {"small": self.small, "large": self.large}
        experts = Experts(models, options.breaker, self.cache)
        tools = Tools(experts=experts, searcher=self.search, sandbox=self.sandbox, options=options)
        return Served(tools, self.judge)


async def play(
    *turns: str | Reply,
    cast: Cast | None = None,
    task: Task = TASK,
    context: int = 16_384,
    max_new_tokens: int = 1_024,
    served: Served | None = None,
    engine: ScriptedEngine | None = None,
    **options: Any,
) -> Episode:
    """One episode of a policy that says `turns`."""
    engine = engine or ScriptedEngine([say(one) if isinstance(one, str) else one for one in turns])
    policy = byte_policy(engine, context=context, max_new_tokens=max_new_tokens)
    chosen = OPTIONS.model_copy(update=options)
    rollout = Rollout(task, "task", "task#0", "task", seed=0)
    served = served or (cast or Cast()).served(chosen)
    return await run_episode(rollout, policy, served, chosen)


def with_table(*experts: Expert, **changes: Any) -> Task:
    """The task with other experts."""
    return replace(TASK, experts=experts, **changes)

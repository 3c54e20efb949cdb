"""Users who say what they are told, and short ways to script an episode of τ²-bench."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taubench.tau2 import Tau2Task, load_tasks
from taubench.users import UserConfig
from turnwise.engine.scripted import Reply
from turnwise.episode import Episode
from turnwise.judge import AssertionJudge
from turnwise.models import Answer
from turnwise.rollout import Rollout
from turnwise.testing import ScriptedEngine, byte_policy, call, say
from turnwise.users import UserReply

from apps.trainers.tau.options import TauOptions
from apps.trainers.tau.tau2.episode import run_episode
from apps.trainers.tau.tau2.jobs import Job

OFFLINE = UserConfig(strategy="offline")
STOP = "###STOP###"


def a_task(domain: str, task_id: str) -> Tau2Task:
    return next(task for task in load_tasks(domain) if task.id == task_id)


def solo_task() -> Tau2Task:
    """The telecom task with the fewest reference actions, which are not a transfer alone."""
    tasks = [task for task in load_tasks("telecom", "base") if _basis(task) == ("ENV_ASSERTION",)]
    return min(tasks, key=lambda task: len(reference(task)))


def _basis(task: Tau2Task) -> tuple[str, ...]:
    assert task.criteria is not None
    return task.criteria.basis


def reference(task: Tau2Task) -> list[str]:
    """The turns that do what the reference does."""
    assert task.criteria is not None
    return [call(action.name, **action.arguments) for action in task.criteria.actions or ()]


@dataclass
class Customer:
    """Gives its answers one by one; an exception is raised."""

    answers: Sequence[str | Exception]
    name: str = "customer"

    def __post_init__(self) -> None:
        self._answers: Iterator[str | Exception] = iter(self.answers)
        self.heard: list[object] = []

    async def reset(self, task: Tau2Task) -> str:
        return self._next()

    async def reply(self, agent_text: object) -> UserReply:
        self.heard.append(agent_text)
        text = self._next()
        return UserReply(text, STOP in text)

    def _next(self) -> str:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Opinion:
    """A judge model with one opinion."""

    name = "judge"

    def __init__(self, said: str | Exception) -> None:
        self.said = said
        self.asked: list[str] = []

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Answer:
        self.asked.append(messages[0]["content"])
        if isinstance(self.said, Exception):
            raise self.said
        return Answer(self.said)


async def play(
    task: Tau2Task,
    turns: Sequence[str | Reply],
    answers: Sequence[str | Exception] = (),
    *,
    solo: bool = False,
    judge: AssertionJudge | None = None,
    context: int = 400_000,
    max_new_tokens: int = 2_000,
    customer: Customer | None = None,
    **options: Any,
) -> Episode:
    engine = ScriptedEngine([say(turn) if isinstance(turn, str) else turn for turn in turns])
    user = customer or Customer(answers)
    env = f"tau2-{task.domain}{'-solo' if solo else ''}"
    return await run_episode(
        Rollout(Job(task, solo), task.key, "r1", "g1", seed=5),
        byte_policy(engine, context=context, max_new_tokens=max_new_tokens),
        TauOptions(**{"env": env, "user": OFFLINE, "keep_trajectory": True, **options}),
        make_user=lambda: user,
        judge=judge,
    )

"""Users that misbehave, and short ways to script an episode."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taubench import Environment, Task, load_tasks
from taubench.users import UserConfig, compact_user
from turnwise.engine.scripted import Reply
from turnwise.episode import Episode
from turnwise.policy import AnyPolicy, Policy
from turnwise.rollout import Rollout
from turnwise.testing import ScriptedEngine, byte_policy, call, say
from turnwise.users import UserReply

from apps.trainers.tau.episode import MakeEnvironment, MakeUser, run_episode
from apps.trainers.tau.options import TauOptions

OFFLINE = UserConfig(strategy="offline")


def cancel_task() -> Task:
    """A real task whose one write is a cancellation."""
    return next(
        task
        for task in load_tasks("retail", "train")
        if [action.name for action in task.actions] == ["cancel_pending_order"]
    )


def right_call(task: Task) -> str:
    (action,) = task.actions
    return call(action.name, **action.kwargs)


def rollout(task: Task, *, seed: int = 5, **more: Any) -> Rollout[Task]:
    return Rollout(task=task, task_id=task.id, rollout_id="r1", group_id="g1", seed=seed, **more)


def scripted(
    *turns: str | Reply, context: int = 8192, max_new_tokens: int = 512
) -> tuple[Policy, ScriptedEngine]:
    engine = ScriptedEngine([say(turn) if isinstance(turn, str) else turn for turn in turns])
    return byte_policy(engine, context=context, max_new_tokens=max_new_tokens), engine


async def play(
    policy: AnyPolicy,
    playing: Rollout[Task],
    *,
    make_user: MakeUser = compact_user,
    make_environment: MakeEnvironment = Environment,
    **options: Any,
) -> Episode:
    """An episode with the compact prompt and its user, where nothing else is said."""
    return await run_episode(
        playing,
        policy,
        TauOptions(**{"prompt": "compact", "user": OFFLINE, **options}),
        make_user=make_user,
        make_environment=make_environment,
    )


@dataclass
class Customer:
    """Says what it is told; each answer is words, an exception to raise, or seconds to wait."""

    answers: Sequence[Any] = ()
    opening: Any = "Cancel it."
    name: str = "customer"

    def __post_init__(self) -> None:
        self._answers = iter(self.answers)

    async def reset(self, task: Task) -> Any:
        return await self._give(self.opening)

    async def reply(self, agent_text: object) -> UserReply:
        return UserReply(await self._give(next(self._answers)))

    async def _give(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        return answer

"""Short ways to play an episode with a scripted policy of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwise.engine.scripted import Reply
from turnwise.episode import Episode
from turnwise.method import play
from turnwise.rollout import Rollout
from turnwise.testing import ScriptedEngine, byte_policy, decode, say

from apps.trainers.memagent.method import MemAgentMethod
from apps.trainers.memagent.options import MemAgentOptions
from apps.trainers.memagent.task import Task

TEXT = "first part-second part-third part-"
PROBLEM = "Which part is last?"
ANSWER = r"It is \boxed{third}."


def method(**options: Any) -> MemAgentMethod:
    """With sections of 12 tokens (bytes)."""
    return MemAgentMethod(MemAgentOptions(**{"chunk_tokens": 12, **options}))


def task(context: Any = TEXT, *answers: str, problem: str = PROBLEM) -> Task:
    return Task(problem, context, answers or ("third",), "rows.jsonl:1")


def rollout(one: Task | None = None) -> Rollout[Task]:
    return Rollout(one or task(), "task", rollout_id="r0", group_id="g", seed=7)


async def read(
    *turns: str | Reply,
    one: Task | None = None,
    context: int = 100_000,
    max_new_tokens: int = 2_000,
    **options: Any,
) -> tuple[Episode, ScriptedEngine]:
    """An episode in which the policy says these turns."""
    engine = ScriptedEngine([say(turn) if isinstance(turn, str) else turn for turn in turns])
    policy = byte_policy(engine, context=context, max_new_tokens=max_new_tokens)
    return await play(method(**options), rollout(one), policy), engine


def prompts(engine: ScriptedEngine) -> Sequence[str]:
    """What the policy was shown, in order."""
    return [decode(call.prompt_ids) for call in engine.calls]


def below(tag: str, prompt: str) -> str:
    """What stands in a block of the full prompt."""
    return prompt.partition(f"<{tag}>\n")[2].partition(f"\n</{tag}>")[0]

"""What fixed choices of a tool score on the generated problems."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tokendelta
from numpy.typing import NDArray
from turnwise.command import PreflightError
from turnwise.episode import Episode
from turnwise.local.demonstrations import Speaker
from turnwise.policy import Policy
from turnwise.rollout import Rollout

from apps.trainers.agentflow.question import Question

CEILING = "the better of the two on every question"
TOOLS = ("base_generator", "python_coder")
CONCURRENCY = 32

Play = Callable[[Rollout[Question], Policy], Awaitable[Episode]]


class FixedPlanner(Speaker):
    """Names the same tool in every step, whatever the question."""

    def __init__(self, tool: str, labels: Sequence[str], tokenizer: Any) -> None:
        super().__init__(tokenizer)
        step = [f"{label}: Answer the question." for label in labels[:-1]]
        self._text = "\n".join([*step, f"{labels[-1]}: {tool}"])

    def say(self, prompt_ids: NDArray[np.int32]) -> str:
        return self._text


async def fixed_tools(
    play: Play,
    tasks: Mapping[str, Question],
    labels: Sequence[str],
    tokenizer: Any,
    profile: tokendelta.Profile,
) -> dict[str, float]:
    """What planners that always name one of `TOOLS` score, and one that names the right one if any.

    Played through the episode loop with rules for helpers, so that everything is deterministic and
    one episode a question is exact.

    Raises:
        PreflightError: an episode was lost, so that a score would not be of the tool alone.
    """
    gate = asyncio.Semaphore(CONCURRENCY)

    async def score(tool: str, name: str, policy: Policy) -> float:
        rollout = Rollout(tasks[name], name, rollout_id=f"{tool}/{name}", group_id=name, seed=0)
        async with gate:
            episode = await play(rollout, policy)
        if episode.score is None:
            raise PreflightError(
                f"baseline of {tool}, question {name}: {episode.ending.label}:"
                f" {episode.ending.error}; nothing was trained"
            )
        return episode.score

    scores = []
    for tool in TOOLS:
        engine = FixedPlanner(tool, labels, tokenizer)
        policy = Policy(engine=engine, profile=profile, max_context_tokens=4_096)
        scores.append(await asyncio.gather(*(score(tool, name, policy) for name in tasks)))
    never, always = scores
    both = [max(pair) for pair in zip(never, always, strict=True)]
    named = {"always the coder": always, "never the coder": never, CEILING: both}
    return {name: float(np.mean(values)) for name, values in named.items()}

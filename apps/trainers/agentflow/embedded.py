"""What an episode needs on this machine alone, and what fixed choices of a tool score with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokendelta
from numpy.typing import NDArray
from sandbox import Isolation, Sandbox, SandboxConfig, SandboxUnavailable
from turnwise.command import PreflightError
from turnwise.engine import Completion, SamplingParams
from turnwise.episode import Episode
from turnwise.judge import Judge
from turnwise.policy import Policy

from apps.trainers.agentflow.episode import run_episode
from apps.trainers.agentflow.helpers import rule_models
from apps.trainers.agentflow.problems import Problem
from apps.trainers.agentflow.prompts import make_prompts
from apps.trainers.agentflow.services import Budgets, OnMalformed, Question, Services
from apps.trainers.agentflow.toolbox import make_toolbox
from apps.trainers.agentflow.tools.tool import ToolParts

CEILING = "the better of the two on every question"
TOOLS = ("base_generator", "python_coder")


@dataclass(frozen=True, slots=True)
class Embedded:
    """Services of this machine.

    Attributes:
        services: Rule-based helpers, both tools, a judge without a model.
        tier: The sandbox's isolation in force.
    """

    services: Services
    tier: str


@asynccontextmanager
async def embedded(
    *,
    prompt: str = "compact",
    max_steps: int = 3,
    on_malformed: OnMalformed = "stop",
    isolation: Isolation = "auto",
) -> AsyncIterator[Embedded]:
    """Starts sandbox and judge; both end with the block.

    Raises:
        PreflightError: no isolation holds on this machine.
    """
    models = rule_models()
    sandbox = Sandbox(SandboxConfig(isolation=isolation, packages=()))
    judge = Judge()
    try:
        try:
            tier = await sandbox.start()
        except SandboxUnavailable as error:
            raise PreflightError(f"sandbox: {error}") from error
        prompts = make_prompts(prompt)
        parts = ToolParts(models=models, prompts=prompts, sandbox=sandbox)
        yield Embedded(
            Services(
                executor=models["executor"],
                verifier=models["verifier"],
                final=models["final"],
                toolbox=make_toolbox(TOOLS, parts),
                judge=judge,
                prompts=prompts,
                budgets=Budgets(max_steps=max_steps),
                on_malformed=on_malformed,
            ),
            tier,
        )
    finally:
        await judge.close()
        await sandbox.close()


class FixedPlanner:
    """Names the same tool in every step, whatever the question. Keeps the engine contract."""

    def __init__(self, tool: str, labels: Sequence[str], tokenizer: Any) -> None:
        step = [f"{label}: Answer the question." for label in labels[:-1]]
        text = "\n".join([*step, f"{labels[-1]}: {tool}"])
        self._ids = np.array(
            [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id],
            dtype=np.int32,
        )

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        return Completion(self._ids, np.zeros(len(self._ids), dtype=np.float32), "stop")

    async def release(self, session_id: str) -> None:
        return None

    async def close(self) -> None:
        return None


async def baselines(
    problems: Sequence[Problem], made: Embedded, tokenizer: Any, profile: tokendelta.Profile
) -> dict[str, float]:
    """What planners that always name one tool score, and one that names the right one if any is.

    Played through the episode loop. Everything but the planner is deterministic, so one episode a
    question is exact.

    Raises:
        PreflightError: an episode was lost, so that a score would not be of the tool alone.
    """

    async def scores(tool: str) -> list[float]:
        policy = Policy(
            engine=FixedPlanner(tool, made.services.prompts.labels, tokenizer),
            profile=profile,
            max_context_tokens=4_096,
        )
        gate = asyncio.Semaphore(32)

        async def one(problem: Problem) -> Episode:
            async with gate:
                return await run_episode(
                    Question(problem.id, problem.text, problem.answer),
                    policy,
                    made.services,
                    rollout_id=f"{tool}/{problem.id}",
                    group_id=problem.id,
                    seed=0,
                )

        return [_score(tool, episode) for episode in await asyncio.gather(*map(one, problems))]

    never, always = [await scores(tool) for tool in TOOLS]
    both = [max(pair) for pair in zip(never, always, strict=True)]
    named = {"always the coder": always, "never the coder": never, CEILING: both}
    return {name: float(np.mean(values)) for name, values in named.items()}


def _score(tool: str, episode: Episode) -> float:
    if episode.score is None:
        raise PreflightError(
            f"baseline of {tool}, question {episode.task_id}: {episode.ending.label}:"
            f" {episode.ending.error}; nothing was trained"
        )
    return episode.score

"""Who helps the planner: frozen models, tools and the judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sandbox import Sandbox
from turnwise.judge import Verdict
from turnwise.models import FrozenModel

from apps.trainers.agentflow.config import AgentFlowOptions
from apps.trainers.agentflow.laptop.rules import rule_models
from apps.trainers.agentflow.prompts import Prompts, make_prompts
from apps.trainers.agentflow.toolbox import Toolbox, make_toolbox
from apps.trainers.agentflow.tools.tool import ToolParts


class Grader(Protocol):
    """Compares an answer with the truth, as `turnwise.judge.Judge` does."""

    async def grade(self, question: str, answer: str, truth: str) -> Verdict:
        """The verdict; one that is unknown loses the episode.

        Raises:
            BoundaryError: the grader is broken.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Helpers:
    """Shared by all episodes.

    Attributes:
        executor: Turns a step into the arguments of a tool.
        verifier: Says whether the question can be answered.
        final: Writes the answer.
        toolbox: What the planner chooses from, with the models and the sandbox inside.
        judge: Grades the answer.
        prompts: How all of them are asked.
    """

    executor: FrozenModel
    verifier: FrozenModel
    final: FrozenModel
    toolbox: Toolbox
    judge: Grader
    prompts: Prompts


def first_prompt(question: str, options: AgentFlowOptions) -> str:
    """What the planner is asked first, as it is known before anything is started or asked.

    Packages that the sandbox turns out to lack are then left out of a tool's limits.

    Raises:
        ConfigError: there is no such tool, or a part that it needs is missing.
    """
    prompts = make_prompts(options.prompt)
    parts = ToolParts(
        models=rule_models(),
        prompts=prompts,
        sandbox=Sandbox(options.sandbox),
        documents=options.documents,
    )
    toolbox = make_toolbox(options.tools, parts)
    return prompts.analysis(question, toolbox, max_steps=options.max_steps)

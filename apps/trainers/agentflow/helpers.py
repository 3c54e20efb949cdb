"""Who helps the planner: frozen models, tools and the judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from turnwise.judge import Verdict
from turnwise.models import FrozenModel

from apps.trainers.agentflow.prompts import Prompts
from apps.trainers.agentflow.toolbox import Toolbox


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

"""What an episode is played with, beside the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from turnwise.judge import Verdict
from turnwise.models import FrozenModel

from apps.trainers.agentflow.prompts import Prompts
from apps.trainers.agentflow.toolbox import Toolbox

OnMalformed = Literal["retry", "penalty", "stop"]


class Grader(Protocol):
    """Compares an answer with the truth, as `turnwise.judge.Judge` does."""

    async def grade(self, question: str, answer: str, truth: str) -> Verdict:
        """The verdict; one that is unknown loses the episode.

        Raises:
            BoundaryError: the grader is broken.
        """
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """One task.

    Attributes:
        id: For people: `aime-2024/7`.
        text: What is asked.
        answer: The truth that the judge compares with.
        metadata: Of the data row.
    """

    id: str
    text: str
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Bounds of one episode.

    Attributes:
        max_steps: Steps, at least 1; every step is shown how many are left.
        max_total_tokens: Tokens read and written by planner, helpers and tools together; when they
            are used up no further step begins.
        wall_s: Seconds, whatever is under way.
        engine_deadline_s: Seconds for each planner turn.
        result_characters: A result in the memory is cut in the middle beyond this.
        memory_characters: All of the memory in a prompt together.
    """

    max_steps: int = 5
    max_total_tokens: int = 131_072
    wall_s: float = 1_800.0
    engine_deadline_s: float = 600.0
    result_characters: int = 4_096
    memory_characters: int = 24_000

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_total_tokens", "wall_s", "engine_deadline_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, found {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Frozen models, tools and rules. Shared by all episodes.

    Attributes:
        executor: Turns a step into the arguments of a tool.
        verifier: Says whether the question can be answered.
        final: Writes the answer.
        toolbox: What the planner chooses from, with the models and the sandbox inside.
        judge: Grades the answer.
        prompts: How all of them are asked.
        budgets: Bounds of one episode.
        on_malformed: What a next step that can't be read leads to (`episode`).
        max_retries: Repeats of unreadable steps in one episode, for `retry`.
        malformed_penalty: Taken off the score for each unreadable step, for `penalty`.
        executor_retries: Repeats of an unreadable command.
    """

    executor: FrozenModel
    verifier: FrozenModel
    final: FrozenModel
    toolbox: Toolbox
    judge: Grader
    prompts: Prompts
    budgets: Budgets = field(default_factory=Budgets)
    on_malformed: OnMalformed = "retry"
    max_retries: int = 2
    malformed_penalty: float = 0.1
    executor_retries: int = 1

    def __post_init__(self) -> None:
        if self.on_malformed not in ("retry", "penalty", "stop"):
            raise ValueError(
                f"on_malformed must be retry, penalty or stop, found {self.on_malformed!r}"
            )
        for name in ("max_retries", "malformed_penalty", "executor_retries"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, found {getattr(self, name)}")

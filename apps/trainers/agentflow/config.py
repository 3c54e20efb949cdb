"""The options of AgentFlow: frozen models by role, tools, budgets and rules.

Defaults are those of the published run, on every backend. The run on a laptop names what it has
otherwise in `presets/laptop.toml`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from sandbox import SandboxConfig
from turnwise.config import Config
from turnwise.judge import JudgeConfig
from turnwise.method import MethodOptions
from turnwise.models import JudgeModelConfig, ModelConfig
from turnwise.objective import Objective

from apps.trainers.agentflow.memory import MIN_CHARACTERS
from apps.trainers.agentflow.prompts import PromptName
from apps.trainers.agentflow.tools.base_generator import BaseGenerator
from apps.trainers.agentflow.tools.python_coder import CODER, PythonCoder

ROLES = ("executor", "verifier", "final", BaseGenerator.name, CODER)
"""What frozen models do in an episode."""
LOOP = ROLES[:3]
"""Roles that an episode needs whatever its tools are."""
OnMalformed = Literal["retry", "penalty", "stop"]


class ModelsConfig(Config):
    """Frozen models by role. A role that is left out is played by `base`."""

    base: ModelConfig | None = None
    """Every role that has no model of its own."""
    executor: ModelConfig | None = None
    """Writes the arguments of a tool."""
    verifier: ModelConfig | None = None
    """Says whether the question can be answered."""
    final: ModelConfig | None = None
    """Writes the answer."""
    base_generator: ModelConfig | None = None
    """The tool base_generator."""
    coder: ModelConfig | None = None
    """Writes the programs of the tool python_coder."""
    judge: JudgeModelConfig | None = None
    """Grades what the rule can't; without one such an answer counts as wrong."""

    def by_name(self) -> dict[str, ModelConfig]:
        """The models that are given, but for the judge."""
        given = {name: getattr(self, name) for name in ("base", *ROLES)}
        return {name: model for name, model in given.items() if model is not None}

    def player(self, role: str) -> str | None:
        """The name of the model that plays a role: its own, else `base`, else None."""
        given = self.by_name()
        return role if role in given else "base" if "base" in given else None


class AgentFlowOptions(MethodOptions):
    """The section `[agentflow]` of a run, which reaches slime's hooks as `args.turnwise`."""

    helpers: Literal["models", "rules"] = "models"
    """Who helps the planner: frozen models, or rules that know the generated problems alone."""
    models: ModelsConfig = ModelsConfig()
    """Frozen models by role."""
    judge: JudgeConfig = JudgeConfig()
    """How answers are graded; the judge model is models.judge."""
    tools: tuple[str, ...] = Field(default=(BaseGenerator.name, PythonCoder.name), min_length=1)
    """Tools in the order in which the planner is shown them: by name, or package.module:Class."""
    documents: Path | None = None
    """JSONL file with `text` and `title` in each line, for the tool search."""
    prompt: PromptName = "full"
    """How all models are asked: in full, or in the fewest tokens, which a policy must know."""
    objective: Objective | None = "turn-mean"
    """What the loss is averaged over: turns of a rollout as in the paper, its tokens, or all."""
    max_steps: int = Field(default=5, ge=1)
    """Steps of an episode: each is one tool, run once. Every prompt says how many are left."""
    max_total_tokens: int = Field(default=131_072, ge=1)
    """Tokens read and written by all models of an episode; then the answer is written."""
    wall_s: float = Field(default=1_800.0, gt=0)
    """Seconds of an episode; beyond them it is lost."""
    engine_deadline_s: float = Field(default=600.0, gt=0)
    """Seconds for each planner turn."""
    result_characters: int = Field(default=4_096, ge=1)
    """A tool's result is cut in the middle beyond this."""
    memory_characters: int = Field(default=24_000, ge=MIN_CHARACTERS)
    """All steps so far together in a prompt."""
    on_malformed: OnMalformed = "retry"
    """A step that can't be read: asked again with the error shown, a penalty, or the end."""
    max_retries: int = Field(default=2, ge=0)
    """Unreadable steps of an episode that are asked again (on-malformed retry)."""
    malformed_penalty: float = Field(default=0.1, ge=0, le=1)
    """Taken off the score for each unreadable step (on-malformed penalty)."""
    executor_retries: int = Field(default=1, ge=0)
    """How often an unreadable command is asked for again."""
    sandbox: SandboxConfig = SandboxConfig()
    """Isolation and limits of a program."""
    eval_per_cell: int = Field(default=4, ge=1)
    """Generated problems of each family and level to evaluate on, where no data file is named."""

    @model_validator(mode="after")
    def _has_helpers(self) -> AgentFlowOptions:
        if self.helpers == "rules":
            if self.models.by_name():
                raise ValueError("models: helpers rules take none but the judge")
            return self
        missing = [role for role in LOOP if self.models.player(role) is None]
        if missing:
            raise ValueError(
                f"models: {' and '.join(missing)} have no model; give models.base, or each its own"
            )
        return self

    def players(self) -> dict[str, str]:
        """The name of the model that plays each role; a role that nobody plays is left out."""
        if self.helpers == "rules":
            return {role: role for role in ROLES}
        found = {role: self.models.player(role) for role in ROLES}
        return {role: name for role, name in found.items() if name is not None}

"""The tool that asks a frozen model."""

from __future__ import annotations

from pydantic import Field
from turnwise.config import ConfigError
from turnwise.fences import after_thinking
from turnwise.models import FrozenModel

from apps.trainers.agentflow.tools.tool import (
    Tool,
    ToolArguments,
    ToolParts,
    ToolPrompts,
    ToolResult,
)


class BaseGenerator(Tool):
    """One question to the model of the role `base_generator`."""

    name = "base_generator"
    description = (
        "Answers a task in words by itself: reasoning, knowledge, checking, rewriting, a short"
        " calculation."
    )

    class Arguments(ToolArguments):
        query: str = Field(
            min_length=1, max_length=8_000, description="The task, with all that it needs."
        )

    def __init__(self, model: FrozenModel, prompts: ToolPrompts) -> None:
        self._model = model
        self._prompts = prompts

    @classmethod
    def build(cls, parts: ToolParts) -> BaseGenerator:
        if cls.name not in parts.models:
            raise ConfigError(f"tools: {cls.name} needs a model of the role {cls.name}")
        return cls(parts.models[cls.name], parts.prompts)

    @property
    def limits(self) -> tuple[str, ...]:
        return ("It runs no code and looks nothing up.",)

    async def run(self, arguments: Arguments, *, seed: int) -> ToolResult:
        prompt = self._prompts.generate(arguments.query)
        answer = await self._model.ask([{"role": "user", "content": prompt}], seed=seed)
        text = (after_thinking(answer.text) or "").strip()
        failed = None if text else "empty"
        return ToolResult(
            text or "The model gave no answer.",
            failed=failed,
            read_tokens=answer.read_tokens,
            written_tokens=answer.written_tokens,
        )

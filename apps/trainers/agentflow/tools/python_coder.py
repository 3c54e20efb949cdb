"""The tool that has a program written and runs it.

A frozen coder writes it; what it wrote is run as it is, in `sandbox`. A program that
fails, is stopped or denied something is a result that the planner sees; only a sandbox that is
broken loses the episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field
from turnwise.config import ConfigError
from turnwise.fences import read_code
from turnwise.models import FrozenModel
from turnwise.programs import run_program

from apps.trainers.agentflow.tools.tool import (
    Tool,
    ToolArguments,
    ToolParts,
    ToolPrompts,
    ToolResult,
)

if TYPE_CHECKING:
    from sandbox import Sandbox

CODER = "coder"


class PythonCoder(Tool):
    """One program by the model of the role `coder`, run once."""

    name = "python_coder"
    runs_code = True
    description = (
        "Has a Python program written for a task and runs it: exact arithmetic, algebra, counting,"
        " search, simulation."
    )

    class Arguments(ToolArguments):
        query: str = Field(
            min_length=1,
            max_length=8_000,
            description="What to compute, in words, with all numbers that it needs.",
        )

    def __init__(self, model: FrozenModel, sandbox: Sandbox, prompts: ToolPrompts) -> None:
        self._model = model
        self._sandbox = sandbox
        self._prompts = prompts

    @classmethod
    def build(cls, parts: ToolParts) -> PythonCoder:
        if CODER not in parts.models:
            raise ConfigError(f"tools: {cls.name} needs a model of the role {CODER}")
        if parts.sandbox is None:
            raise ConfigError(f"tools: {cls.name} needs a sandbox")
        return cls(parts.models[CODER], parts.sandbox, parts.prompts)

    @property
    def limits(self) -> tuple[str, ...]:
        config = self._sandbox.config
        also = f" and {', '.join(self._packages)}" if self._packages else ""
        return (
            f"A program has {config.wall_s:g} s and {config.memory_mb} MiB, and no network.",
            f"It imports the standard library{also}.",
        )

    def facts(self) -> Mapping[str, str]:
        return {"isolation": self._sandbox.tier}

    @property
    def _packages(self) -> tuple[str, ...]:
        missing = self._sandbox.missing
        return tuple(name for name in self._sandbox.config.packages if name not in missing)

    async def run(self, arguments: Arguments, *, seed: int) -> ToolResult:
        prompt = self._prompts.code(arguments.query, packages=self._packages)
        answer = await self._model.ask([{"role": "user", "content": prompt}], seed=seed)
        code = read_code(answer.text)
        told: tuple[str, str | None] = ("No program was written.", "no_code")
        if code is not None:
            told = await run_program(self._sandbox, code)
        return ToolResult(
            told[0],
            failed=told[1],
            read_tokens=answer.read_tokens,
            written_tokens=answer.written_tokens,
            steps=((CODER, answer.text),),
        )

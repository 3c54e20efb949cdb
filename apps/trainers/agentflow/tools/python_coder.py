"""The tool that has a program written and runs it.

A frozen coder writes it; what it wrote is run as it is, in `sandbox`. A program that
fails, is stopped or denied something is a result that the planner sees; only a sandbox that is
broken loses the episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field
from sandbox.result import (
    Denied,
    OutOfMemory,
    OutputTruncated,
    Ran,
    Result,
    SandboxBroken,
    TimedOut,
)
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, crossing
from turnwise.models import FrozenModel

from apps.trainers.agentflow.fences import read_code
from apps.trainers.agentflow.memory import cut_middle
from apps.trainers.agentflow.tools.tool import (
    Tool,
    ToolArguments,
    ToolParts,
    ToolPrompts,
    ToolResult,
)

if TYPE_CHECKING:
    from sandbox import Sandbox

OUTPUT_CHARACTERS = 4_000
ERROR_CHARACTERS = 1_000
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
            async with crossing(Boundary.SANDBOX):
                told = _told(await self._sandbox.run(code))
        return ToolResult(
            told[0],
            failed=told[1],
            read_tokens=answer.read_tokens,
            written_tokens=answer.written_tokens,
            steps=((CODER, answer.text),),
        )


def _told(ran: Result) -> tuple[str, str | None]:
    """What the planner is told, and why there is no result."""
    out = cut_middle(ran.out.strip(), OUTPUT_CHARACTERS)
    match ran:
        case SandboxBroken():
            raise BoundaryError(Boundary.SANDBOX, ran.what)
        case Ran(code=0):
            return (out, None) if out else ("The program printed nothing.", "silent")
        case Ran():
            words, failed = f"The program ended with exit code {ran.code}", "error"
        case TimedOut():
            words, failed = f"The program was stopped after {ran.limit_s:g} s", "timed_out"
        case OutOfMemory():
            words, failed = f"The program needed more than {ran.limit_mb} MiB", "out_of_memory"
        case OutputTruncated():
            words, failed = f"The program printed more than {ran.limit_kb} KiB", "output_truncated"
        case Denied():
            words, failed = f"The program may not do that: {ran.what}", "denied"
    err = cut_middle(ran.err.strip(), ERROR_CHARACTERS) if ran.err.strip() else ""
    parts = [f"{words}."]
    parts += [f"Errors:\n{err}"] if err else []
    parts += [f"Printed:\n{out}"] if out else []
    return "\n".join(parts), failed

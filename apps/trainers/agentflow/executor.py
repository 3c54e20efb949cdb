"""From a step to what came of it: a frozen model writes the arguments, the tool is run.

Whoever wrote the arguments, they are data: parsed, checked against the tool's schema and handed to
`Tool.run`. What is run is the tool that the planner named, whatever the executor wrote.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from turnwise.episode import Boundary, crossing

from apps.trainers.agentflow.memory import Action
from apps.trainers.agentflow.parse import Malformed, NextStep, read_command
from apps.trainers.agentflow.prompts import Prompts
from apps.trainers.agentflow.tools.tool import Tool, ToolResult

Ask = Callable[[str], Awaitable[str]]
"""A frozen model: prompt in, answer out, both without special tokens."""


async def choose_arguments(
    ask: Ask,
    prompts: Prompts,
    question: str,
    step: NextStep,
    *,
    retries: int,
    on_malformed: Callable[[Malformed], None],
) -> Mapping[str, Any] | Malformed:
    """The arguments of the step's tool, or why the last of `1 + retries` answers gives none.

    Args:
        on_malformed: Told of every answer that can't be read.
    """
    problem: Malformed | None = None
    for _ in range(1 + retries):
        found = read_command(await ask(prompts.command(question, step, problem=problem)), step.tool)
        if not isinstance(found, Malformed):
            return found
        problem = found
        on_malformed(found)
    assert problem is not None
    return problem


async def run_tool(tool: Tool, arguments: Mapping[str, Any], *, seed: int) -> ToolResult:
    """
    Raises:
        BoundaryError: the tool is broken, at the boundary that it says, else at the tool server's.
    """
    async with crossing(Boundary.TOOL_SERVER):
        return await tool.run(tool.Arguments.model_validate(dict(arguments)), seed=seed)


def to_action(
    step: NextStep, arguments: Mapping[str, Any] | Malformed, result: ToolResult | None
) -> Action:
    """What the memory keeps of a step; without a result the arguments are what went wrong."""
    if isinstance(arguments, Malformed):
        return Action(
            tool=step.tool.name,
            sub_goal=step.sub_goal,
            arguments=None,
            result=f"No call was made: {arguments.message}.",
            failed="no_call",
        )
    assert result is not None
    return Action(
        tool=step.tool.name,
        sub_goal=step.sub_goal,
        arguments=arguments,
        result=result.text,
        failed=result.failed,
    )

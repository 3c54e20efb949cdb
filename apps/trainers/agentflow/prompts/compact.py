"""Prompts in the fewest tokens, for a planner of a few million parameters that was shown them
before. A next step is two lines."""

from __future__ import annotations

from collections.abc import Sequence

from apps.trainers.agentflow.memory import Memory
from apps.trainers.agentflow.parse import SUB_GOAL, TOOL_NAME, Malformed, NextStep
from apps.trainers.agentflow.prompts import sections
from apps.trainers.agentflow.prompts.base import (
    ANALYSIS,
    PROBLEM,
    QUESTION,
    STEPS,
    STEPS_LEFT,
    TASK,
    TOOL,
    TOOLS,
    Prompts,
)
from apps.trainers.agentflow.prompts.base import SUB_GOAL as SUB_GOAL_SECTION
from apps.trainers.agentflow.toolbox import Toolbox
from apps.trainers.agentflow.tools.tool import Tool


class CompactPrompts(Prompts):
    """See the module."""

    name = "compact"
    labels = (SUB_GOAL, TOOL_NAME)
    max_analysis_characters = 400

    def analysis(self, question: str, tools: Toolbox, *, max_steps: int) -> str:
        parts = [(QUESTION, question), (TOOLS, _all(tools)), (STEPS_LEFT, str(max_steps))]
        return sections.join("Analyse.", parts)

    def next_step(
        self,
        question: str,
        analysis: str,
        tools: Toolbox,
        memory: Memory,
        *,
        steps_left: int,
        problem: Malformed | None = None,
    ) -> str:
        parts = [
            (QUESTION, question),
            (TOOLS, _all(tools)),
            (ANALYSIS, analysis),
            (STEPS, memory.render(compact=True)),
            (STEPS_LEFT, str(steps_left)),
        ]
        if problem is not None:
            parts.append((PROBLEM, problem.message))
        return sections.join("Next step.", parts)

    def command(self, question: str, step: NextStep, *, problem: Malformed | None = None) -> str:
        parts = [(QUESTION, question), (TOOL, _one(step.tool)), (SUB_GOAL_SECTION, step.sub_goal)]
        if problem is not None:
            parts.append((PROBLEM, problem.message))
        return sections.join("Arguments as a JSON object.", parts)

    def verdict(
        self, question: str, analysis: str, tools: Toolbox, memory: Memory, *, steps_left: int
    ) -> str:
        parts = [
            (QUESTION, question),
            (STEPS, memory.render(compact=True)),
            (STEPS_LEFT, str(steps_left)),
        ]
        return sections.join("Conclusion: STOP or CONTINUE?", parts)

    def final(self, question: str, analysis: str, memory: Memory) -> str:
        parts = [(QUESTION, question), (STEPS, memory.render(compact=True))]
        return sections.join(r"Answer in \boxed{}.", parts)

    def generate(self, task: str) -> str:
        return sections.join("Solve.", [(TASK, task)])

    def code(self, task: str, *, packages: Sequence[str]) -> str:
        return sections.join("Python that prints the result, fenced.", [(TASK, task)])


def _all(tools: Toolbox) -> str:
    return "\n".join(_one(tool) for tool in tools)


def _one(tool: Tool) -> str:
    """One line: the name with its arguments, what it does, its limits."""
    arguments = ", ".join(tool.schema()["properties"])
    return " ".join([f"{tool.name}({arguments}): {tool.description}", *tool.limits])

"""What every model of an episode is shown.

`full` is for models that follow instructions; `compact` says the same in the fewest tokens, for
policies of a few million parameters and a context of about a thousand tokens. Both are built from
labelled sections (`sections`) with the labels below, so a rule-based helper
reads either. Training and evaluation call the same builders.

| builder     | asked     | answer                                                       |
|-------------|-----------|--------------------------------------------------------------|
| `analysis`  | planner   | free text                                                    |
| `next_step` | planner   | the sections `labels`, read by `parse.read_step`              |
| `command`   | executor  | a JSON object of arguments, read by `parse.read_command`      |
| `verdict`   | verifier  | ends with `Conclusion: STOP` or `CONTINUE`                    |
| `final`     | final     | ends with a boxed answer                                     |
| `generate`  | generator | free text                                                    |
| `code`      | coder     | a Python fence that prints                                    |

Texts are given without special tokens; the builders add none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from apps.trainers.agentflow.memory import Memory
from apps.trainers.agentflow.parse import Malformed, NextStep
from apps.trainers.agentflow.toolbox import Toolbox
from apps.trainers.agentflow.tools.tool import Tool

PromptName = Literal["full", "compact"]

QUESTION = "Question"
TOOLS = "Tools"
ANALYSIS = "Analysis"
STEPS = "Steps so far"
STEPS_LEFT = "Steps left"
CONTEXT = "Context"
SUB_GOAL = "Sub-goal"
TOOL = "Tool"
TASK = "Task"
PROBLEM = "Problem with the last answer"


class Prompts(ABC):
    """One way to write the prompts; holds nothing.

    Attributes:
        name: `full` or `compact`.
        labels: The sections of a next step, in order.
        max_analysis_characters: An analysis is cut in the middle beyond this in later prompts.
    """

    name: PromptName
    labels: tuple[str, ...]
    max_analysis_characters: int

    @abstractmethod
    def analysis(self, question: str, tools: Toolbox, *, max_steps: int) -> str:
        """Turn 0 of the planner: what the question asks and which tools may help."""

    @abstractmethod
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
        """A later turn of the planner: one sub-goal and one tool.

        Args:
            steps_left: Steps that may still be taken, this one included.
            problem: Why the last answer to this prompt could not be read.
        """

    @abstractmethod
    def command(self, question: str, step: NextStep, *, problem: Malformed | None = None) -> str:
        """The executor: arguments for the tool of the step."""

    @abstractmethod
    def verdict(
        self, question: str, analysis: str, tools: Toolbox, memory: Memory, *, steps_left: int
    ) -> str:
        """The verifier: whether the question can be answered from what was found.

        Args:
            steps_left: Steps that may still be taken, without the last one.
        """

    @abstractmethod
    def final(self, question: str, analysis: str, memory: Memory) -> str:
        """The final answer, from what was found."""

    @abstractmethod
    def generate(self, task: str) -> str:
        """The tool base_generator."""

    @abstractmethod
    def code(self, task: str, *, packages: Sequence[str]) -> str:
        """The tool python_coder.

        Args:
            packages: What a program can import beside the standard library.
        """


def describe(tool: Tool) -> str:
    """The tool in full: what it does, its arguments with types and bounds, and its limits."""
    lines = [f"### {tool.name}", tool.description]
    schema = tool.schema()
    for name, field in schema["properties"].items():
        kind = field.get("type", "value")
        need = "required" if name in schema["required"] else "optional"
        bounds = [
            f"{words} {field[key]}" for key, words in _BOUNDS.items() if field.get(key) is not None
        ]
        detail = ", ".join([kind, need, *bounds])
        lines.append(f"- argument {name} ({detail}): {field.get('description', '')}".rstrip(": "))
    lines += [f"- limit: {limit}" for limit in tool.limits]
    return "\n".join(lines)


_BOUNDS = {
    "maxLength": "characters at most",
    "minLength": "characters at least",
    "maximum": "at most",
    "minimum": "at least",
    "default": "by default",
}

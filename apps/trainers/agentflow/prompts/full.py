"""Prompts for models that follow instructions."""

from __future__ import annotations

from collections.abc import Sequence

from apps.trainers.agentflow.memory import Memory
from apps.trainers.agentflow.parse import (
    CONTEXT,
    JUSTIFICATION,
    SUB_GOAL,
    TOOL_NAME,
    Malformed,
    NextStep,
)
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
    describe,
)
from apps.trainers.agentflow.prompts.base import CONTEXT as CONTEXT_SECTION
from apps.trainers.agentflow.prompts.base import SUB_GOAL as SUB_GOAL_SECTION
from apps.trainers.agentflow.toolbox import Toolbox

ANALYSIS_HEAD = """\
You plan how a question gets answered with a handful of tools. Others run the tools and write the
answer. Before any tool is used, think about the question."""
ANALYSIS_FORMAT = """\
Write in short paragraphs:
1. what exactly has to be found, and in which form the answer is wanted;
2. which facts, skills and tools it takes, and what each tool would contribute;
3. what may go wrong, and how a result could be checked.
Do not give the answer yet."""

STEP_HEAD = """\
You plan how a question gets answered with a handful of tools. Choose the single next step. Another
model turns it into a call of the tool, and you see the result before the step after it. The model
that makes the call sees the question and what you write here, nothing of the earlier steps, so
repeat the values that are needed."""
STEP_FORMAT = f"""\
Write these four sections, each once, in this order, with nothing after the last:
{JUSTIFICATION}: why this step and this tool, given what is known already
{CONTEXT}: every number, formula, code or intermediate result that the step needs
{SUB_GOAL}: the one thing that the tool has to find out
{TOOL_NAME}: one name from the list of tools, exactly as it is written there"""

COMMAND_HEAD = """\
A planner chose a tool and a sub-goal. Write the arguments of the call. The tool sees them alone, so
put in everything from the context that it needs."""
COMMAND_FORMAT = """\
One fenced block with a JSON object whose keys are the arguments of the tool, for instance

```json
{"query": "..."}
```

The object is read as data. Write no code around it."""

VERDICT_HEAD = """\
Decide whether a question can be answered from what was found so far. Each line under "Steps so far"
is one finished step as JSON."""
VERDICT_FORMAT = """\
Say in a few sentences whether the results answer all parts of the question, whether they agree with
each other, and whether something still has to be computed or checked. The last line is either
Conclusion: STOP
if they suffice, or
Conclusion: CONTINUE
if another step is needed."""

FINAL_HEAD = """\
Answer the question from the results below. Each line under "Steps so far" is one finished step as
JSON; a step with "failed" brought no result. Trust computed values over guesses."""
FINAL_FORMAT = r"""Give the reasoning in short and end with the answer alone in \boxed{...}."""

GENERATE_HEAD = """\
Do the task below. Be exact, show the steps that matter, and end with the result."""

CODE_HEAD = """\
Write a Python program for the task below. It runs once, by itself, without input or network, and
only what it prints is seen."""
CODE_FORMAT = """\
One fenced block:

```python
...
```

Print the result, with a word on what it is. There is the standard library"""


class FullPrompts(Prompts):
    """See the module."""

    name = "full"
    labels = (JUSTIFICATION, CONTEXT, SUB_GOAL, TOOL_NAME)
    max_analysis_characters = 8_000

    def analysis(self, question: str, tools: Toolbox, *, max_steps: int) -> str:
        parts = [(QUESTION, question), (TOOLS, _all(tools)), (STEPS_LEFT, str(max_steps))]
        return sections.join(ANALYSIS_HEAD, parts, ANALYSIS_FORMAT)

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
            (STEPS, memory.render()),
            (STEPS_LEFT, f"{steps_left}, this one included"),
        ]
        return sections.join(STEP_HEAD, [*parts, *_problem(problem)], STEP_FORMAT)

    def command(self, question: str, step: NextStep, *, problem: Malformed | None = None) -> str:
        parts = [
            (QUESTION, question),
            (TOOL, describe(step.tool)),
            (CONTEXT_SECTION, step.context),
            (SUB_GOAL_SECTION, step.sub_goal),
        ]
        return sections.join(COMMAND_HEAD, [*parts, *_problem(problem)], COMMAND_FORMAT)

    def verdict(
        self, question: str, analysis: str, tools: Toolbox, memory: Memory, *, steps_left: int
    ) -> str:
        parts = [
            (QUESTION, question),
            (TOOLS, _all(tools)),
            (ANALYSIS, analysis),
            (STEPS, memory.render()),
            (STEPS_LEFT, str(steps_left)),
        ]
        return sections.join(VERDICT_HEAD, parts, VERDICT_FORMAT)

    def final(self, question: str, analysis: str, memory: Memory) -> str:
        parts = [(QUESTION, question), (ANALYSIS, analysis), (STEPS, memory.render())]
        return sections.join(FINAL_HEAD, parts, FINAL_FORMAT)

    def generate(self, task: str) -> str:
        return sections.join(GENERATE_HEAD, [(TASK, task)])

    def code(self, task: str, *, packages: Sequence[str]) -> str:
        also = f" and {', '.join(packages)}" if packages else " alone"
        return sections.join(CODE_HEAD, [(TASK, task)], f"{CODE_FORMAT}{also}.")


def _all(tools: Toolbox) -> str:
    return "\n\n".join(describe(tool) for tool in tools)


def _problem(problem: Malformed | None) -> list[tuple[str, str]]:
    return [] if problem is None else [(PROBLEM, problem.message)]

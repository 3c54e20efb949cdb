"""Demonstrations for the warm start: questions answered by a planner that knows no tool's worth.

1. The analysis says what kind of question it is and how large its numbers are. It is right, and it
   says nothing about tools.
2. Every next step names a tool by habit: for each kind and size of question a share of steps with
   the coder was drawn (`habit`), which has nothing to do with what the tools are worth there, and
   is kept whatever happened before. Its sub-goal fits the question.
3. A stated share of next steps breaks the form (`Flaw`).

So the planner that learns from them can read questions and write steps, but its preferences are
superstitions, half of them for the wrong tool, and it often breaks the form: reinforcement learning
has both to set right.
Episodes go through the loop that training and evaluation use, with the same helpers and tools;
only the programs run in this process, since all of them are `coder`'s own. Demonstration i of
a seed depends on the seed and i alone, and none is of a held-out problem.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
import tokendelta
from numpy.typing import NDArray
from turnwise.episode import Episode
from turnwise.local.demonstrations import Demonstrations, Speaker, joined
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed

from apps.trainers.agentflow.laptop.base_generator import UNKNOWN
from apps.trainers.agentflow.laptop.problems import Problem, make_problems
from apps.trainers.agentflow.memory import Action, Memory
from apps.trainers.agentflow.method import AgentFlowMethod
from apps.trainers.agentflow.question import Question

HABITS = (0.3, 0.7)
"""Shares of steps with the coder; each kind and size of question has one of them."""
MAX_CONTEXT_TOKENS = 512
_PER_CELL = 300

Flaw = Literal["no tool", "unknown tool", "two tools", "words after", "wrong order"]
FLAWS: tuple[Flaw, ...] = get_args(Flaw)

_KINDS = (
    ("sum of k^2", "a sum of squares over a range", "Find the sum of the squares."),
    ("sum of all integers", "a sum over a range", "Find the sum of the range."),
    ("common divisor", "a common divisor", "Find the common divisor."),
    ("remainder", "the remainder of a power", "Find the remainder."),
    ("larger root", "a root of an equation", "Find the root."),
    ("y =", "two equations", "Solve the equations."),
    ("x +", "one equation", "Solve the equation."),
    ("than", "a comparison of things", "Compare the things."),
    ("fills", "a story about boxes", "Work out the story."),
    ("gives", "a story about giving", "Work out the story."),
    (" * ", "a formula", "Work out the formula."),
    (" in ", "a measure in another unit", "Convert the measure."),
    ("", "a fact about things", "Recall the fact."),
)


def kind(question: str) -> tuple[str, str]:
    """What a question is about, and the sub-goal that fits it."""
    return next((name, goal) for sign, name, goal in _KINDS if sign in question)


def analysis(question: str) -> str:
    """Kind and size of a question, in two sentences."""
    largest = max((int(number) for number in re.findall(r"[0-9]+", question)), default=None)
    size = "no numbers"
    if largest is not None:
        size = f"{'small' if largest < 20 else 'middling' if largest < 100 else 'large'} numbers"
    return f"The question is about {kind(question)[0]}. It has {size}."


def next_step(question: str, tool: str, flaw: Flaw | None) -> str:
    """A step in the compact form, broken in one way if there is a flaw."""
    goal, other = kind(question)[1], "base_generator" if tool == "python_coder" else "python_coder"
    if flaw == "no tool":
        return f"Sub-Goal: {goal}"
    if flaw == "unknown tool":
        return f"Sub-Goal: {goal}\nTool Name: calculator"
    if flaw == "two tools":
        return f"Sub-Goal: {goal}\nTool Name: {tool}, {other}"
    if flaw == "words after":
        return f"Sub-Goal: {goal}\nTool Name: {tool}\nThen check it."
    if flaw == "wrong order":
        return f"Tool Name: {tool}\nSub-Goal: {goal}"
    return f"Sub-Goal: {goal}\nTool Name: {tool}"


def habit(question: str) -> float:
    """The share of steps with the coder for questions whose analysis reads like this one's."""
    digest = hashlib.sha256(analysis(question).encode()).digest()
    return HABITS[digest[0] % 2]


class UninformedPlanner(Speaker):
    """Says the turns of one demonstration.

    Attributes:
        said: Its turns so far, with the flaw of each.
    """

    def __init__(
        self, question: str, rng: random.Random, *, flaw_share: float, tokenizer: Any
    ) -> None:
        super().__init__(tokenizer)
        self._question, self._rng, self._flaw_share = question, rng, flaw_share
        self.said: list[tuple[str, Flaw | None]] = []

    def say(self, prompt_ids: NDArray[np.int32]) -> str:
        text, flaw = analysis(self._question), None
        if self.said:
            tool = (
                "python_coder" if self._rng.random() < habit(self._question) else "base_generator"
            )
            flaw = self._rng.choice(FLAWS) if self._rng.random() < self._flaw_share else None
            text = next_step(self._question, tool, flaw)
        self.said.append((text, flaw))
        return text


async def play(
    problem: Problem,
    method: AgentFlowMethod,
    tokenizer: Any,
    profile: tokendelta.Profile,
    *,
    seed: int,
    flaw_share: float,
) -> tuple[Episode, list[bool]]:
    """The question answered by a planner that knows no tool's worth, and which turns are flawed.

    Raises:
        RuntimeError: the loop read a turn otherwise than it was meant, or lost the episode.
    """
    planner = UninformedPlanner(
        problem.text, random.Random(seed), flaw_share=flaw_share, tokenizer=tokenizer
    )
    policy = Policy(engine=planner, profile=profile, max_context_tokens=MAX_CONTEXT_TOKENS)
    question = Question(problem.text, problem.answer)
    rollout = Rollout(question, problem.id, rollout_id=problem.id, group_id=problem.id, seed=seed)
    episode = await method.run(rollout, policy)
    flaws = [flaw is not None for _, flaw in planner.said]
    if not episode.ending.by_policy or episode.metrics["malformed"] != sum(flaws):
        raise RuntimeError(
            f"{problem.id}: {episode.ending.label} ({episode.ending.error}) with "
            f"{episode.metrics['malformed']:g} malformed turns after {planner.said}"
        )
    return episode, flaws


def demonstrated(seed: int, count: int) -> Iterator[Problem]:
    """Problem 0 to count - 1 of a seed; all are of the training side."""
    problems = make_problems("train", per_cell=_PER_CELL, seed=derive_seed(seed, "problems"))
    cells: dict[tuple[str, int], list[Problem]] = {}
    for problem in problems:
        cells.setdefault((problem.family, problem.level), []).append(problem)
    of_cell = list(cells.values())
    for index in range(count):
        rng = random.Random(derive_seed(seed, "demonstration", index))
        yield rng.choice(of_cell[index % len(of_cell)])


async def record(
    method: AgentFlowMethod,
    tokenizer: Any,
    profile: tokendelta.Profile,
    *,
    seed: int,
    count: int,
    flaw_share: float,
    concurrency: int = 32,
) -> Demonstrations:
    """Plays demonstrations 0 to count - 1 of a seed, every turn a row.

    Raises RuntimeError as `play` does.
    """
    gate = asyncio.Semaphore(concurrency)

    async def one(index: int, problem: Problem) -> tuple[Episode, list[bool]]:
        async with gate:
            return await play(
                problem,
                method,
                tokenizer,
                profile,
                seed=derive_seed(seed, "turns", index),
                flaw_share=flaw_share,
            )

    played = await asyncio.gather(
        *(one(index, problem) for index, problem in enumerate(demonstrated(seed, count)))
    )
    samples = [sample for episode, _ in played for sample in episode.segments]
    return joined(samples, [flaw for _, flaws in played for flaw in flaws])


def corpus(method: AgentFlowMethod, *, seed: int, count: int) -> Iterator[str]:
    """What a planner reads and writes on `count` problems, to learn the tokenizer from."""
    memory, steps = Memory(), method.options.max_steps
    prompts, toolbox = method.helpers.prompts, method.helpers.toolbox
    memory.add(Action("base_generator", "Recall the fact.", {}, UNKNOWN))
    failed = "The program failed: Traceback (most recent call last): NameError is not defined"
    memory.add(Action("python_coder", "Compare the things.", {}, failed, failed="error"))
    for problem in demonstrated(seed, count):
        said = analysis(problem.text)
        yield f"user\n{prompts.analysis(problem.text, toolbox, max_steps=steps)}"
        yield f"assistant\n{said}"
        shown = prompts.next_step(problem.text, said, toolbox, memory, steps_left=steps)
        yield f"user\n{shown}"
        for tool in toolbox.names:
            yield f"assistant\n{next_step(problem.text, tool, None)}"

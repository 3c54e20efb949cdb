"""Demonstrations for the warm start: questions led by somebody who knows no expert's worth.

1. A turn begins with a thought, which is right: the subject of the question, which specialist there
   is for it, what it asks, and what cost weighs. Of what was found it says whether that holds what
   was asked for.
2. Its last line calls an expert by habit. For each kind of question and weight of cost a favourite
   among those who answer was drawn (`FAVOURITES`), how often a helper is asked first, and which;
   none of it has to do with what anybody is worth.
3. A stated share of turns breaks the form (`Flaw`).

So the policy that learns from them reads tables and writes calls, but its choices are
superstitions: reinforcement learning has to set them right. Episodes go through the loop that
training and evaluation use, with the same experts and search. Demonstration i of a seed depends on
the seed and i alone, and none is of a tune or held-out question, or has an unseen expert.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
import tokendelta
from numpy.typing import NDArray
from turnwise.episode import Episode
from turnwise.local.demonstrations import Demonstrations, Speaker, joined
from turnwise.method import Method
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed
from turnwise.rows import Row

from apps.trainers.toolorchestra.laptop.experts import UNKNOWN, chance, documents
from apps.trainers.toolorchestra.laptop.tasks import COST_WEIGHTS, make_row
from apps.trainers.toolorchestra.laptop.world import (
    COUNTED,
    GRADES,
    RELATIONS,
    SUBJECTS,
    Problem,
    make_problem,
    read_problem,
    split_of,
)
from apps.trainers.toolorchestra.prompts import opening
from apps.trainers.toolorchestra.tables import COST, Expert
from apps.trainers.toolorchestra.task import Defaults, Task, to_task

MAX_CONTEXT_TOKENS = 320
FAVOURITES = ("cheapest", "specialist", "dearest")
FAVOURED = 0.4
"""Share of answers for which the favourite is asked; else it is one of the three by chance."""
HELPED = (0.35, 0.65)
"""Shares of questions for which a helper is asked first; each kind has one of them."""
AGAIN = 0.1
"""Share of turns that ask a helper although one was asked."""

UNKNOWN_ROLE = "a5"

Flaw = Literal["no expert", "unknown expert", "other tool", "words after"]
FLAWS: tuple[Flaw, ...] = get_args(Flaw)
KINDS = {
    "maths": ("small", "middling", "large"),
    "facts": RELATIONS,
    "words": tuple(name.split()[0] for name in COUNTED),
}


def kind(problem: Problem) -> str:
    """What a question is about beside its subject, in a word that its text tells."""
    return KINDS[problem.subject][problem.grade - 1]


def thought(task: Task, problem: Problem, result: str | None) -> str:
    """What is to be seen from the question and the table, or of what a call brought."""
    if result is not None:
        return "found" if problem.about in result else "nothing"
    able = specialist(task, problem)
    who, cost = "nobody" if able is None else able.role, task.preferences.get(COST, 0.0)
    return f"{problem.subject} {who}, {kind(problem)}, cost {cost:g}"


def specialist(task: Task, problem: Problem) -> Expert | None:
    """The cheapest who answers of whom the table says that he knows the subject; None if it is
    nobody but the one who knows all."""
    for expert in task.of("answer"):
        if problem.subject in expert.ability.split(", "):
            return expert
    return None


class Habit:
    """What is called, whatever it is worth; see the module."""

    def __init__(self, task: Task, problem: Problem) -> None:
        kept = (problem.subject, kind(problem), f"{task.preferences.get(COST, 0.0):g}")
        self._task, self._specialist = task, specialist(task, problem)
        self._favourite = int(chance("favourite", *kept) * len(FAVOURITES))
        self._helped = HELPED[int(chance("helped", *kept) * 2)]
        self._search = HELPED[int(chance("search", *kept) * 2)]

    def expert(self, rng: random.Random, *, first: bool) -> Expert:
        """Who is called next."""
        if rng.random() < (self._helped if first else AGAIN):
            tool = "search" if rng.random() < self._search else "enhance_reasoning"
            return self._task.of(tool)[0]
        cheap, *_, dear = answerers = self._task.of("answer")
        favourites = (cheap, self._specialist or rng.choice(answerers), dear)
        if rng.random() < FAVOURED:
            return favourites[self._favourite]
        return rng.choice(favourites)


class Uninformed(Speaker):
    """Says the turns of one demonstration.

    Attributes:
        flaws: Of each turn so far.
    """

    def __init__(
        self, task: Task, rng: random.Random, *, flaw_share: float, tokenizer: Any
    ) -> None:
        super().__init__(tokenizer)
        problem = read_problem(task.question)
        assert problem is not None, task.question
        self._task, self._problem = task, problem
        self._rng, self._flaw_share = rng, flaw_share
        self._habit = Habit(task, problem)
        self.flaws: list[Flaw | None] = []

    def say(self, prompt_ids: NDArray[np.int32]) -> str:
        first = not self.flaws
        result = None if first else last_message(self.read(prompt_ids))
        expert = self._habit.expert(self._rng, first=first)
        flaw = self._rng.choice(FLAWS) if self._rng.random() < self._flaw_share else None
        self.flaws.append(flaw)
        call = _call(expert, self._task, flaw)
        return f"{thought(self._task, self._problem, result)}\n{call}"


def last_message(prompt: str) -> str:
    """The last message of the user."""
    return prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]


def _call(expert: Expert, task: Task, flaw: Flaw | None) -> str:
    if flaw == "no expert":
        return expert.tool
    if flaw == "unknown expert":
        return f"{expert.tool} {UNKNOWN_ROLE}"
    if flaw == "other tool":
        other = next(one for one in task.experts if one.tool != expert.tool)
        return f"{expert.tool} {other.role}"
    if flaw == "words after":
        return f"{expert.tool} {expert.role} now"
    return f"{expert.tool} {expert.role}"


def demonstrated(seed: int, count: int) -> Iterator[Row]:
    """Row 0 to count - 1 of a seed: questions of the training side, with seen experts."""
    cells = [
        (subject, grade, cost) for subject in SUBJECTS for grade in GRADES for cost in COST_WEIGHTS
    ]
    for index in range(count):
        rng = random.Random(derive_seed(seed, "demonstration", index))
        subject, level, cost = cells[index % len(cells)]
        while True:
            problem = make_problem(subject, level, rng)
            if split_of(problem.text) == "train":
                break
        yield make_row(problem, cost, f"demonstration/{index}", side="seen", rng=rng)


async def play(
    row: Row,
    method: Method[Any, Any],
    tokenizer: Any,
    profile: tokendelta.Profile,
    *,
    seed: int,
    flaw_share: float,
) -> tuple[Episode, bool]:
    """The question led by somebody who knows no expert's worth, and whether a turn is flawed.

    Raises:
        RuntimeError: the loop read a turn otherwise than it was meant, or lost the episode.
    """
    task = method.task(row)
    leader = Uninformed(task, random.Random(seed), flaw_share=flaw_share, tokenizer=tokenizer)
    policy = Policy(engine=leader, profile=profile, max_context_tokens=MAX_CONTEXT_TOKENS)
    rollout = Rollout(task, row.id, rollout_id=row.id, group_id=row.id, seed=seed)
    episode = await method.run(rollout, policy)
    flaws = sum(flaw is not None for flaw in leader.flaws)
    read = episode.metrics["malformed"] + episode.metrics["unknown_calls"]
    if not episode.ending.by_policy or read != flaws:
        raise RuntimeError(
            f"{row.id}: {episode.ending.label} ({episode.ending.error}) with {read:g} turns"
            f" that called nobody, meant were {leader.flaws}"
        )
    return episode, flaws > 0


async def record(
    method: Method[Any, Any],
    tokenizer: Any,
    profile: tokendelta.Profile,
    *,
    seed: int,
    count: int,
    flaw_share: float,
    concurrency: int = 32,
) -> Demonstrations:
    """Plays demonstrations 0 to count - 1 of a seed, an episode a row.

    Raises RuntimeError as `play` does.
    """
    gate = asyncio.Semaphore(concurrency)

    async def one(index: int, row: Row) -> tuple[Episode, bool]:
        async with gate:
            return await play(
                row,
                method,
                tokenizer,
                profile,
                seed=derive_seed(seed, "turns", index),
                flaw_share=flaw_share,
            )

    rows = enumerate(demonstrated(seed, count))
    played = await asyncio.gather(*(one(index, row) for index, row in rows))
    samples = [sample for episode, _ in played for sample in episode.segments]
    return joined(samples, [flawed for episode, flawed in played for _ in episode.segments])


def corpus(seed: int, count: int) -> Iterator[str]:
    """What a policy reads and writes on `count` questions, to learn the tokenizer from."""
    for row in demonstrated(seed, count):
        task = to_task(row, Defaults())
        problem = read_problem(task.question)
        assert problem is not None, task.question
        yield f"user\n{opening(task, 'compact')[0]['content']}"
        for expert in task.experts:
            yield f"assistant\n{thought(task, problem, None)}\n{expert.tool} {expert.role}"
        yield f"user\n{problem.about} = {problem.answer}\n{UNKNOWN}"
        yield f"assistant\n{thought(task, problem, problem.about)}"
        yield f"assistant\n{thought(task, problem, '')}"
    yield from (document.text for document in documents())

"""The generated questions with their tables as the rows of a run, and what a result shows."""

from __future__ import annotations

import random
from collections.abc import Sequence

from turnwise.config import ConfigError, nearest
from turnwise.rollout import derive_seed
from turnwise.rows import Row

from apps.trainers.toolorchestra.laptop.rosters import Side, budget, make_roster
from apps.trainers.toolorchestra.laptop.world import (
    GRADES,
    SPLITS,
    SUBJECTS,
    Problem,
    Split,
    problems,
)

ROW_SEED = 20_261_130
"""Of the rows of every split, whatever the run's seed: all runs have the same ones."""
COST_WEIGHTS = (0, 1, 4)
"""What a saving may weigh, where a right answer weighs 1."""
TRAIN_PER_CELL = 16
UNSEEN = "unseen"
"""Held-out questions with experts of which no demonstration and no training row has any."""


def splits() -> tuple[str, ...]:
    """The names of all splits."""
    return (*SPLITS, UNSEEN)


def rows(split: str, *, eval_per_cell: int) -> list[Row]:
    """The rows of a split; `eval_per_cell` of each subject, grade and weight where it is evaluated.

    Raises:
        ConfigError: there is no such split.
    """
    if split == UNSEEN:
        return _rows("held-out", eval_per_cell, side="unseen")
    for known in SPLITS:
        if known == split:
            per_cell = TRAIN_PER_CELL if known == "train" else eval_per_cell
            return _rows(known, per_cell, side="seen")
    raise ConfigError(f"no generated questions of split {split!r}; {nearest(split, splits())}")


def _rows(split: Split, per_cell: int, *, side: Side) -> list[Row]:
    found = []
    for subject in SUBJECTS:
        for grade in GRADES:
            asked = problems(split, subject, grade, seed=ROW_SEED)
            for number, problem in zip(range(per_cell * len(COST_WEIGHTS)), asked, strict=False):
                cost = COST_WEIGHTS[number % len(COST_WEIGHTS)]
                name = f"{subject}-{grade}-{cost}/{number}"
                rng = random.Random(derive_seed(ROW_SEED, split, side, name))
                found.append(make_row(problem, cost, name, side=side, rng=rng))
    return found


def make_row(problem: Problem, cost: float, name: str, *, side: Side, rng: random.Random) -> Row:
    """A question with a table of its own and a weight of cost."""
    experts = make_roster(side, rng)
    return Row(
        problem.text,
        problem.answer,
        {
            "experts": [expert.model_dump() for expert in experts],
            "preferences": {"accuracy": 1, "cost": cost},
            "budget": {"cost": budget(experts)},
        },
        id=name,
        where=name,
    )


SPLIT_CLAIM: dict[str, str] = {
    "held-out": "Generated questions of three subjects and three grades, each with a table of"
    " experts of its own; training and held-out questions share none. No setting was chosen on the"
    " held-out ones.",
    "tune": "Generated questions of three subjects and three grades; training and tune questions"
    " share none, but settings were chosen on the tune ones, so the result flatters.",
    "train": "Generated questions of three subjects and three grades, those of training, so the"
    " result says nothing about others.",
    UNSEEN: "Held-out questions with experts whose abilities and prices no demonstration and no"
    " training row has.",
}
RULES_CLAIM = (
    "The score is the utility: what a right answer and what was saved weigh in the row, 0 where the"
    " answer is wrong. The experts are rules of documented skill and none sees the label; the"
    " search is BM25 over generated documents. The score says nothing about language models as"
    " experts."
)
SHIPPED_CLAIM = (
    "The policy was warmed up on demonstrations that read the table rightly and then call by habits"
    " that have nothing to do with what an expert is worth, some of their turns malformed. A rise"
    " shows that it learnt from rewards alone whom to ask, at which price, and to keep the form."
)


def claim(split: str, *, shipped: bool) -> tuple[str, ...]:
    """What a result on a split shows and what it does not."""
    said: Sequence[str] = (SPLIT_CLAIM[split], RULES_CLAIM, SHIPPED_CLAIM if shipped else "")
    return tuple(sentence for sentence in said if sentence)

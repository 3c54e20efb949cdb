"""The generated problems as the rows of a run, and what a result on them shows."""

from __future__ import annotations

from typing import get_args

from turnwise.config import ConfigError, nearest
from turnwise.rows import Row

from apps.trainers.agentflow.laptop.problems import Split, make_problems

PROBLEM_SEED = 20_260_101
"""Of the problems of every side, whatever the run's seed: all runs have the same ones."""
TRAIN_PER_CELL = 24

SPLIT_CLAIM = {
    "held-out": "Generated problems of seven families and three levels; training and held-out"
    " problems share none. No setting was chosen on the held-out ones; an earlier planner, replaced"
    " for its training rewards, was scored on them too.",
    "tune": "Generated problems of seven families and three levels; training and tune problems"
    " share none, but settings were chosen on the tune ones, so the result flatters.",
    "train": "Generated problems of seven families and three levels, those of training, so the"
    " result says nothing about others.",
}
RULES_CLAIM = (
    "The helpers are rules: the coder writes exact programs and misreads words, the base generator"
    " understands words and is wrong on large numbers, the verifier takes any number for an answer."
    " None of them sees the truth. The score says nothing about language models as helpers and is"
    " not comparable with published ones."
)
SHIPPED_CLAIM = (
    "The planner was warmed up on demonstrations whose tools were named by habits that have nothing"
    " to do with what the tools are worth, a fifth of their steps malformed. A rise shows that it"
    " learnt from rewards alone which tool suits which question, and to keep the form."
)


def rows(split: str, *, eval_per_cell: int) -> list[Row]:
    """The problems of a split; `eval_per_cell` of each family and level where it is evaluated.

    Raises:
        ConfigError: there is no such split.
    """
    for known in get_args(Split):
        if known == split:
            per_cell = TRAIN_PER_CELL if known == "train" else eval_per_cell
            return [
                Row(problem.text, problem.answer, id=problem.id, where=f"{split} {problem.id}")
                for problem in make_problems(known, per_cell=per_cell, seed=PROBLEM_SEED)
            ]
    raise ConfigError(
        f"no generated problems of split {split!r}; {nearest(split, get_args(Split))}"
    )


def claim(split: str, *, rules: bool, shipped: bool) -> tuple[str, ...]:
    """What a result on a split shows and what it does not.

    Args:
        rules: Rules play the helpers.
        shipped: The policy is the shipped planner.
    """
    said = (SPLIT_CLAIM[split], RULES_CLAIM if rules else "", SHIPPED_CLAIM if shipped else "")
    return tuple(sentence for sentence in said if sentence)

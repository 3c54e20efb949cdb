"""Tables of experts for generated questions: who can be asked, how able they are, what they cost.

A row has one expert for `search`, one for `enhance_reasoning` and three that answer: a small, a
middling and a large one. The abler, the dearer, by and large; who is good at what differs from row
to row, and names say nothing. Experts of the side `unseen` have names, skills and relations of
prices that no demonstration and no training row has:

| side   | names, a letter and a digit | skills in maths, facts, words | price of a written token   |
|--------|-----------------------------|-------------------------------|----------------------------|
| seen   | four fifths of all          | the others                    | 4 times that of a read one |
| unseen | the fifth that is left      | `UNSEEN_SKILLS`               | 3 times                    |
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any, Literal, TypeAlias

from apps.trainers.toolorchestra.laptop.world import GRADES, SUBJECTS
from apps.trainers.toolorchestra.tables import Expert

Side = Literal["seen", "unseen"]
Skill: TypeAlias = tuple[int, ...]

UNSEEN_SKILLS: frozenset[Skill] = frozenset(
    {(1, 1, 2), (1, 3, 1), (2, 1, 2), (3, 2, 1), (1, 3, 2), (3, 1, 3), (3, 2, 2), (2, 3, 3)}
)
WRITE_PRICE = {"seen": 4, "unseen": 3}
ANSWERERS: Sequence[tuple[range, range]] = (
    (range(3, 5), range(1, 3)),
    (range(5, 7), range(3, 6)),
    (range(7, 10), range(6, 10)),
)
"""Sums of grades, and prices of a million tokens read: small, middling, large."""
HELPERS = {"search": "facts", "enhance_reasoning": "maths"}
_KINDS = {"search": "search", "enhance_reasoning": "reason", "answer": "answer"}
BUDGET_TOKENS = (100, 6)
"""Read and written for an answer without help: what the dearest costs for it counts as dear."""


def make_roster(side: Side, rng: random.Random) -> tuple[Expert, ...]:
    """The experts of a row, in the order in which the policy is shown them."""
    names = [_name(letter, side, rng) for letter in rng.sample(ascii_lowercase, 5)]
    helpers = [_helper(tool, names.pop(), side, rng) for tool in ("search", "enhance_reasoning")]
    answerers = []
    for sums, prices in ANSWERERS:
        skill = rng.choice(_skills(side, sums))
        ability = ", ".join(f"{name} {grade}" for name, grade in zip(SUBJECTS, skill, strict=True))
        answerers.append(_expert("answer", names.pop(), skill, ability, rng.choice(prices), side))
    rng.shuffle(answerers)
    return (*helpers, *answerers)


def budget(experts: Sequence[Expert]) -> float:
    """US dollars that count as dear with these experts."""
    return max(expert.price(*BUDGET_TOKENS) for expert in experts)


def _name(letter: str, side: Side, rng: random.Random) -> str:
    """A name of the side that begins with the letter; in a row no two begin alike."""
    digits = [n for n in range(10) if ((ord(letter) + n) % 5 == 0) == (side == "unseen")]
    return f"{letter}{rng.choice(digits)}"


def _helper(tool: str, name: str, side: Side, rng: random.Random) -> Expert:
    grade = rng.choice(GRADES)
    price = rng.randint(max(1, grade - 1), grade + 1)
    return _expert(tool, name, (grade,), f"{HELPERS[tool]} {grade}", price, side)


def _expert(tool: Any, name: str, skill: Skill, ability: str, price: int, side: Side) -> Expert:
    model = "-".join(map(str, (_KINDS[tool], *skill)))
    return Expert(
        role=name,
        tool=tool,
        model=model,
        ability=ability,
        read_price=price,
        write_price=WRITE_PRICE[side] * price,
    )


def _skills(side: Side, sums: range) -> list[Skill]:
    """Skills of a size on a side."""
    return [
        skill
        for skill in itertools.product(GRADES, repeat=len(SUBJECTS))
        if sum(skill) in sums and (skill in UNSEEN_SKILLS) == (side == "unseen")
    ]

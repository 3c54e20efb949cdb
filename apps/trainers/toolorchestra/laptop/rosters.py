"""Tables of experts for generated questions: who can be asked, how able they are, what they cost.

A row has one expert for `search` (s1), one for `enhance_reasoning` (r1), and from cheap to dear
three or four who answer (a1, a2, ...): one who knows a little of everything, one or two
specialists, and one who knows all, but nothing as well as a specialist. Roles are the same in every
row; who plays them, how able, at which price, is drawn for each row. Experts of the side `unseen`
have abilities and prices that no demonstration and no training row has:

| side   | a specialist knows | prices of a written token and a read one |
|--------|--------------------|------------------------------------------|
| seen   | one subject        | 4 to 1                                   |
| unseen | two subjects       | 3 to 1                                   |
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Literal

from apps.trainers.toolorchestra.laptop.world import GRADES, SUBJECTS
from apps.trainers.toolorchestra.tables import Expert, ToolName

Side = Literal["seen", "unseen"]

LITTLE, ALL = "little", "all"
SKILL_OF_ALL = (2, 2, 2)
"""Who knows all knows more than a little, and less than a specialist of his own subject."""
HELPERS: dict[ToolName, str] = {"search": "facts", "enhance_reasoning": "maths"}
"""The subject that each helps with."""
CARE = {GRADES[0]: "hasty", GRADES[-1]: "careful"}
"""What the policy is told of a helper, by its grade."""
WRITE_PRICE = {"seen": 4, "unseen": 3}
KNOWN = {"seen": 1, "unseen": 2}
BUDGET_TOKENS = (80, 4)
"""Read and written for an answer without help: what the dearest costs for it counts as dear."""
_KINDS = {"search": "search", "enhance_reasoning": "reason", "answer": "answer"}


def make_roster(side: Side, rng: random.Random) -> tuple[Expert, ...]:
    """The experts of a row, in the order in which the policy is shown them."""
    found = []
    helpers: Sequence[tuple[str, ToolName]] = (("s1", "search"), ("r1", "enhance_reasoning"))
    for role, tool in helpers:
        grade = rng.choice(list(CARE))
        price = 2 if grade > 1 else 1
        found.append(_expert(tool, role, [grade], CARE[grade], price, side))
    specialists = rng.choice((1, 2))
    known = [(), *rng.sample(_specialities(side), specialists), SUBJECTS]
    prices = [1, *sorted(rng.sample((2, 3, 4), specialists)), rng.choice((7, 8, 9))]
    for number, (subjects, price) in enumerate(zip(known, prices, strict=True), start=1):
        found.append(_answerer(f"a{number}", subjects, price, side))
    return tuple(found)


def budget(experts: Sequence[Expert]) -> float:
    """US dollars that count as dear with these experts."""
    return max(expert.price(*BUDGET_TOKENS) for expert in experts)


def _specialities(side: Side) -> list[tuple[str, ...]]:
    """What a specialist may know, each in the order of `SUBJECTS`."""
    return list(itertools.combinations(SUBJECTS, KNOWN[side]))


def _answerer(role: str, known: Sequence[str], price: int, side: Side) -> Expert:
    if len(known) == len(SUBJECTS):
        return _expert("answer", role, SKILL_OF_ALL, ALL, price, side)
    skill = [GRADES[-1] if subject in known else GRADES[0] for subject in SUBJECTS]
    ability = ", ".join(known) or LITTLE
    return _expert("answer", role, skill, ability, price, side)


def _expert(
    tool: ToolName, role: str, skill: Sequence[int], ability: str, price: int, side: Side
) -> Expert:
    return Expert(
        role=role,
        tool=tool,
        model="-".join(map(str, (_KINDS[tool], *skill))),
        ability=ability,
        read_price=price,
        write_price=WRITE_PRICE[side] * price,
    )

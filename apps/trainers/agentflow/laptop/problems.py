"""Graded arithmetic and algebra problems, made from a seed, with exact answers.

| family        | level 1                | level 2                    | level 3                   |
| ------------- | ---------------------- | -------------------------- | ------------------------- |
| arithmetic    | 7 * 8 + 5              | 47 * 83 + 29               | 4837 * 2931 - 806         |
| range-sum     | up to 5 integers       | 30 to 100 integers         | 15 to 60 squares          |
| number-theory | small common divisor   | larger common divisor      | remainder of a power      |
| equation      | a * x + b = c          | two unknowns               | roots of a quadratic      |
| word          | one step               | two steps                  | two steps, an idle number |
| fact          | sides of a hexagon     | of several hexagons        | how many more than others |
| measure       | one unit in another    | several units              | several units and a rest  |

The first four want exact calculation, the last three want words to be understood; `rules` says
who is good at what. Every answer is an integer, computed here from the numbers that were drawn.

Training, tune and held-out problems share none: a problem's side follows from its canonical wording
alone (`side`), whatever the seed, and another phrasing of it stays on its side.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.rollout import derive_seed

LEVELS = (1, 2, 3)
_TRIES = 2_000

Split = Literal["train", "tune", "held-out"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its answer.

    Attributes:
        id: `family-level-digest`; the digest is of the canonical wording.
        family: See the module's table.
        level: 1 to 3.
        text: What is asked.
        answer: An integer in decimal digits, with its sign if it is negative.
    """

    id: str
    family: str
    level: int
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class _Draw:
    """Phrasings of the same question, the canonical one first."""

    phrasings: tuple[str, ...]
    answer: int


FACTS = (
    ("triangle", "sides", 3),
    ("square", "sides", 4),
    ("pentagon", "sides", 5),
    ("hexagon", "sides", 6),
    ("heptagon", "sides", 7),
    ("octagon", "sides", 8),
    ("nonagon", "sides", 9),
    ("decagon", "sides", 10),
    ("rectangle", "corners", 4),
    ("cube", "faces", 6),
    ("tetrahedron", "faces", 4),
    ("octahedron", "faces", 8),
    ("dodecahedron", "faces", 12),
    ("icosahedron", "faces", 20),
    ("spider", "legs", 8),
    ("beetle", "legs", 6),
    ("horse", "legs", 4),
    ("chicken", "legs", 2),
    ("crab", "legs", 10),
    ("tricycle", "wheels", 3),
    ("bicycle", "wheels", 2),
    ("violin", "strings", 4),
    ("guitar", "strings", 6),
    ("hand", "fingers", 5),
    ("trio", "singers", 3),
    ("quartet", "singers", 4),
    ("quintet", "singers", 5),
    ("sonnet", "lines", 14),
)
"""Things, what is counted of them, and how many one has."""

UNITS = (
    ("week", "days", 7),
    ("day", "hours", 24),
    ("hour", "minutes", 60),
    ("minute", "seconds", 60),
    ("year", "months", 12),
    ("decade", "years", 10),
    ("century", "years", 100),
    ("dozen", "eggs", 12),
    ("foot", "inches", 12),
    ("yard", "feet", 3),
    ("pound", "ounces", 16),
    ("gallon", "quarts", 4),
    ("meter", "centimeters", 100),
    ("kilometer", "meters", 1000),
    ("kilogram", "grams", 1000),
    ("fortnight", "days", 14),
    ("quarter", "months", 3),
    ("millennium", "centuries", 10),
)
"""A unit, the smaller one, and how many of it make one."""

_PLURALS = {"foot": "feet", "century": "centuries", "millennium": "millennia", "dozen": "dozen"}
_NAMES = ("Anna", "Ben", "Carla", "David", "Ella", "Finn", "Grace", "Hugo", "Ida", "Jonas")
_THINGS = ("apples", "books", "cards", "coins", "marbles", "pencils", "shells", "stamps")
_BOXES = ("bags", "baskets", "boxes", "jars", "shelves", "trays")


def singular(noun: str) -> str:
    """A thing or a unit above with its article."""
    return f"{'an' if noun[0] in 'aeio' or noun == 'hour' else 'a'} {noun}"


def plural(noun: str) -> str:
    """The plural of a thing or a unit above."""
    return _PLURALS.get(noun, f"{noun}s")


def _arithmetic(rng: random.Random, level: int) -> _Draw:
    low, high, rest = {1: (2, 9, 9), 2: (12, 99, 99), 3: (1_000, 9_999, 999)}[level]
    a, b, c = rng.randint(low, high), rng.randint(low, high), rng.randint(2, rest)
    minus = rng.random() < 0.5 and a * b > c
    formula = f"{a} * {b} {'-' if minus else '+'} {c}"
    phrasings = (f"Compute {formula}.", f"What is {formula}?", f"Find the value of {formula}.")
    return _Draw(phrasings, a * b - c if minus else a * b + c)


def _range_sum(rng: random.Random, level: int) -> _Draw:
    if level == 3:
        first, terms = rng.randint(1, 40), rng.randint(15, 60)
        last = first + terms - 1
        ask = f"of k^2 for k from {first} to {last}"
        total = sum(k * k for k in range(first, last + 1))
    else:
        first = rng.randint(1, 9) if level == 1 else rng.randint(1, 200)
        terms = rng.randint(3, 5) if level == 1 else rng.randint(30, 100)
        last = first + terms - 1
        ask = f"of all integers from {first} to {last}"
        total = (first + last) * terms // 2
    return _Draw((f"Find the sum {ask}.", f"What is the sum {ask}?"), total)


def _number_theory(rng: random.Random, level: int) -> _Draw:
    if level == 3:
        base, power, modulus = rng.randint(3, 40), rng.randint(30, 200), rng.randint(50, 999)
        ask = f"remainder when {base}^{power} is divided by {modulus}"
        answer = pow(base, power, modulus)
    else:
        low, high = (2, 6) if level == 1 else (15, 60)
        common = rng.randint(low, high)
        a, b = sorted(rng.sample(range(2, 8 if level == 1 else 60), 2))
        a, b = (a * common, b * common) if level == 1 else (a * common * 3, b * common * 3)
        ask = f"greatest common divisor of {a} and {b}"
        answer = math.gcd(a, b)
    return _Draw((f"Find the {ask}.", f"What is the {ask}?"), answer)


def _equation(rng: random.Random, level: int) -> _Draw:
    if level == 1:
        a, x, b = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 9)
        formula = f"{a} * x + {b} = {a * x + b}"
        return _Draw((f"Solve {formula} for x.", f"Which x solves {formula}?"), x)
    if level == 2:
        x, y = rng.randint(101, 900), rng.randint(101, 900)
        a, b, c, d = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
        lines = f"{a} * x + {b} * y = {a * x + b * y} and {c} * x - {d} * y = {c * x - d * y}"
        return _Draw((f"Solve {lines} for x.", f"Which x solves {lines}?"), x)
    low, high = sorted(rng.sample(range(20, 120), 2))
    formula = f"x^2 - {low + high} * x + {low * high} = 0"
    return _Draw(
        (f"Find the larger root of {formula}.", f"What is the larger root of {formula}?"), high
    )


def _word(rng: random.Random, level: int) -> _Draw:
    one, other = rng.sample(_NAMES, 2)
    things, boxes = rng.choice(_THINGS), rng.choice(_BOXES)
    if level == 1:
        a = rng.randint(6, 20)
        b = rng.randint(2, a - 2)
        start = f"{one} has {a} {things} and gives {b} of them to {other}."
        return _Draw(
            (
                f"{start} How many {things} does {one} keep?",
                f"{start} How many {things} are left for {one}?",
            ),
            a - b,
        )
    n, each = rng.randint(3, 9), rng.randint(3, 9)
    lost = rng.randint(2, n * each - 2) if n * each < 12 else rng.randint(2, 9)
    if level == 2:
        start = f"{one} fills {n} {boxes} with {each} {things} and then loses {lost} {things}."
        return _Draw(
            (
                f"{start} How many {things} does {one} still have?",
                f"{start} How many {things} are there now?",
            ),
            n * each - lost,
        )
    age = rng.randint(8, 15)
    start = (
        f"{one}, who is {age} years old, fills {n} {boxes} with {each} {things} and gets {lost} "
        f"{things} from {other}."
    )
    return _Draw(
        (
            f"{start} How many {things} does {one} have now?",
            f"{start} How many {things} are there now?",
        ),
        n * each + lost,
    )


def _fact(rng: random.Random, level: int) -> _Draw:
    thing, part, count = rng.choice(FACTS)
    if level == 1:
        return _Draw(
            (
                f"How many {part} does {singular(thing)} have?",
                f"What is the number of {part} of {singular(thing)}?",
            ),
            count,
        )
    if level == 2:
        n = rng.randint(2, 9)
        return _Draw(
            (
                f"How many {part} do {n} {plural(thing)} have together?",
                f"What is the number of {part} of {n} {plural(thing)}?",
            ),
            n * count,
        )
    n = rng.randint(2, 6)
    others = [
        (m, other, n * count - m * fewer)
        for other, its_part, fewer in FACTS
        for m in range(2, 7)
        if its_part == part and other != thing and m != n and n * count > m * fewer
    ]
    if not others:
        return _fact(rng, level)
    m, other, more = rng.choice(others)
    ask = f"{n} {plural(thing)} have than {m} {plural(other)}"
    return _Draw(
        (f"How many more {part} do {ask}?", f"Find how many more {part} {ask}."),
        more,
    )


def _measure(rng: random.Random, level: int) -> _Draw:
    unit, small, count = rng.choice(UNITS)
    if level == 1:
        return _Draw(
            (
                f"How many {small} are in {singular(unit)}?",
                f"What is the number of {small} in {singular(unit)}?",
            ),
            count,
        )
    n = rng.randint(2, 6)
    amount = f"{n} {plural(unit)}"
    if level == 3:
        rest = rng.randint(2, min(9, count - 1))
        amount += f" and {rest} {small}"
        total = n * count + rest
    else:
        total = n * count
    return _Draw(
        (f"How many {small} are in {amount}?", f"What is the number of {small} in {amount}?"), total
    )


_FAMILIES: dict[str, Callable[[random.Random, int], _Draw]] = {
    "arithmetic": _arithmetic,
    "range-sum": _range_sum,
    "number-theory": _number_theory,
    "equation": _equation,
    "word": _word,
    "fact": _fact,
    "measure": _measure,
}
FAMILIES = tuple(_FAMILIES)


def side(canonical: str) -> Split:
    """Where the problem of this canonical wording belongs: a quarter of all are held out, an eighth
    is for choosing settings."""
    place = hashlib.sha256(canonical.encode()).digest()[1]
    return "held-out" if place < 64 else "tune" if place < 96 else "train"


def make_problems(
    split: Split,
    *,
    per_cell: int,
    seed: int,
    families: Sequence[str] = FAMILIES,
    levels: Sequence[int] = LEVELS,
) -> tuple[Problem, ...]:
    """Distinct problems of a split: up to `per_cell` of every family and level, in that order.

    A cell gives fewer where it holds fewer: there are 28 facts of level 1 and 18 measures. No two
    problems of the result are phrasings of the same one. The same arguments give the same problems.

    Raises:
        ValueError: an unknown family or level, or `per_cell` below 1.
    """
    unknown = [name for name in families if name not in _FAMILIES]
    if unknown or not set(levels) <= set(LEVELS) or per_cell < 1:
        raise ValueError(
            f"families are {', '.join(FAMILIES)}, levels 1 to 3, per_cell at least 1; found "
            f"{unknown or ''} {tuple(levels)} {per_cell}"
        )
    made: dict[str, Problem] = {}
    for family in families:
        for level in levels:
            rng = random.Random(derive_seed("problems", seed, split, family, level))
            wanted = len(made) + per_cell
            for _ in range(_TRIES):
                if len(made) == wanted:
                    break
                draw = _FAMILIES[family](rng, level)
                text = rng.choice(draw.phrasings)
                canonical = draw.phrasings[0]
                if canonical in made or side(canonical) != split:
                    continue
                digest = hashlib.sha256(canonical.encode()).hexdigest()[:8]
                name = f"{family}-{level}-{digest}"
                made[canonical] = Problem(name, family, level, text, str(draw.answer))
    return tuple(made.values())

"""Generated questions of three subjects and three grades, with exact answers, and what is known.

| subject | grade 1           | grade 2        | grade 3               | helped by           |
|---------|-------------------|----------------|-----------------------|---------------------|
| maths   | 7 * 8 + 5         | 47 * 83 + 29   | 4837 * 2931 - 1806    | `enhance_reasoning` |
| facts   | a town's river    | its founder    | its mayor             | `search`            |
| words   | a word's letters  | its vowels     | its different letters | nothing             |

Towns exist here alone: `FACTS` holds what is true of them, and documents tell it. Training, tune
and held-out questions share none: the split follows from a question's wording (`split_of`).
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from turnwise.rollout import derive_seed

Subject = Literal["maths", "facts", "words"]
SUBJECTS: tuple[Subject, ...] = get_args(Subject)
GRADES = (1, 2, 3)
Split = Literal["train", "tune", "held-out"]
SPLITS: tuple[Split, ...] = get_args(Split)
RELATIONS = ("river", "founder", "mayor")
"""Of a town, by grade."""

_HEADS = (
    "Ar", "Bor", "Cal", "Dor", "El", "Fen", "Gar", "Har", "Im", "Jar", "Kel", "Lor", "Mir", "Nar",
    "Ob", "Per", "Quin", "Rov", "Sea", "Tar", "Ub", "Var", "Whit", "Zad",
)  # fmt: skip
_TAILS = ("len", "sk", "der", "wick", "by", "ton")
_GIVEN = (
    "Ada", "Bela", "Cora", "Dov", "Edda", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kofi", "Lena",
)  # fmt: skip
_FAMILY = (
    "Abel", "Britt", "Dunya", "Falko", "Holm", "Klara", "Lund", "Moss", "Nagy", "Pell", "Rask",
    "Stern", "Thal", "Vogt", "Wolff", "Zander",
)  # fmt: skip
_WATERS = ("Tol", "Ess", "Rin", "Ver", "Mol", "Ild", "Sar", "Und", "Kam", "Nev")
_FLOWS = ("a", "er", "ina", "ow", "ith", "uz")
WORDS = (
    "anchor", "basket", "bridge", "butter", "candle", "carpet", "castle", "cherry", "circle",
    "copper", "cotton", "desert", "dragon", "engine", "falcon", "fabric", "finger", "flower",
    "forest", "garden", "ginger", "guitar", "hammer", "harbor", "helmet", "hunter", "insect",
    "island", "jacket", "jungle", "kettle", "kitten", "ladder", "lantern", "leather", "lemon",
    "library", "lizard", "magnet", "marble", "market", "meadow", "mirror", "monkey", "mountain",
    "needle", "nickel", "orange", "orchard", "oyster", "paddle", "palace", "pencil", "pepper",
    "pillow", "planet", "pocket", "potato", "powder", "prince", "puzzle", "rabbit", "ribbon",
    "river", "rocket", "saddle", "salmon", "school", "shadow", "shoulder", "silver", "spider",
    "spring", "stable", "station", "summer", "tailor", "teacher", "temple", "thunder", "ticket",
    "timber", "tunnel", "turtle", "valley", "velvet", "village", "violin", "walnut", "window",
    "winter", "wizard", "yellow", "zebra",
)  # fmt: skip
_RANGES = ((2, 9), (12, 99), (1_200, 9_900))
_ASKED = {
    "river": "Which river does {town} lie on?",
    "founder": "Who founded {town}?",
    "mayor": "Who is the mayor of {town}?",
}
COUNTED = ("letters", "vowels", "different letters")
"""Of a word, by grade."""
_FORMULA = re.compile(r"What is (\d{1,9}) \* (\d{1,9}) ([+-]) (\d{1,9})\?")
_COUNT = re.compile(r"How many (letters|vowels|different letters) has ([a-z]{1,40})\?")
_RELATION = {
    relation: re.compile(re.escape(asked).replace(r"\{town\}", r"(\w{1,40})"))
    for relation, asked in _ASKED.items()
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One question.

    Attributes:
        subject, grade: See the module.
        text: What is asked.
        answer: A number in digits, or a name.
        about: What has to be found or worked out: a formula, `mayor of Borsk`, `vowels of lemon`.
    """

    subject: Subject
    grade: int
    text: str
    answer: str
    about: str


TOWNS = tuple(head + tail for head in _HEADS for tail in _TAILS)


def _facts() -> dict[tuple[str, str], str]:
    rng = random.Random(20_261_130)
    people = [f"{given} {family}" for given in _GIVEN for family in _FAMILY]
    rivers = [water + flow for water in _WATERS for flow in _FLOWS]
    found = {}
    for town in TOWNS:
        founder, mayor = rng.sample(people, 2)
        for relation, value in zip(RELATIONS, (rng.choice(rivers), founder, mayor), strict=True):
            found[relation, town] = value
    return found


FACTS = _facts()
"""By relation and town."""


def told(relation: str, town: str) -> str:
    """A fact as a document tells it."""
    return f"The {relation} of {town} is {FACTS[relation, town]}."


def split_of(text: str) -> Split:
    """The one split that a question may be in: three fifths train, a fifth each of the others."""
    digit = hashlib.sha256(text.encode()).digest()[0] % 5
    return "train" if digit < 3 else "tune" if digit == 3 else "held-out"


def make_problem(subject: Subject, grade: int, rng: random.Random) -> Problem:
    """A question of a cell, of any split."""
    if subject == "facts":
        text = _ASKED[RELATIONS[grade - 1]].format(town=rng.choice(TOWNS))
    elif subject == "words":
        text = f"How many {COUNTED[grade - 1]} has {rng.choice(WORDS)}?"
    else:
        low, high = _RANGES[grade - 1]
        a, b, c = (rng.randint(low, high) for _ in range(3))
        text = f"What is {a} * {b} {rng.choice('+-')} {c}?"
    problem = read_problem(text)
    assert problem is not None, text
    return problem


def read_problem(text: str) -> Problem | None:
    """What a text asks, and the answer; None where it is no question of this world."""
    if found := _FORMULA.fullmatch(text):
        a, b, c = (int(found[group]) for group in (1, 2, 4))
        grade = next((n for n, (_, high) in enumerate(_RANGES, 1) if max(a, b) <= high), 3)
        answer = a * b + (c if found[3] == "+" else -c)
        about = f"{a} * {b} {found[3]} {c}"
        return Problem("maths", grade, text, str(answer), about)
    if found := _COUNT.fullmatch(text):
        word = found[2]
        vowels = sum(letter in "aeiou" for letter in word)
        counts = (len(word), vowels, len(set(word)))
        grade = COUNTED.index(found[1]) + 1
        about = f"{found[1]} of {word}"
        return Problem("words", grade, text, str(counts[grade - 1]), about)
    for grade, relation in enumerate(RELATIONS, 1):
        found = _RELATION[relation].fullmatch(text)
        if found and (relation, found[1]) in FACTS:
            about = f"{relation} of {found[1]}"
            return Problem("facts", grade, text, FACTS[relation, found[1]], about)
    return None


def problems(split: Split, subject: Subject, grade: int, *, seed: int) -> Iterator[Problem]:
    """Different questions of a split and cell, without end; ends where there are no more."""
    rng = random.Random(derive_seed(seed, split, subject, grade))
    seen: set[str] = set()
    misses = 0
    while misses < 10_000:
        problem = make_problem(subject, grade, rng)
        if problem.text in seen or split_of(problem.text) != split:
            misses += 1
            continue
        misses = 0
        seen.add(problem.text)
        yield problem

"""A world nobody knows: people, places and works, each with a document that tells its facts.

Names are made of syllables, so that no question can be answered from anywhere but the documents,
and surnames are shared. A question follows relations from a named entity ("the birthplace of the
founder of the employer of X"), so that each document leads to the next, or compares two entities.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

SYLLABLES = (
    "bar", "bel", "cor", "dal", "dren", "el", "fas", "gor", "hal", "ister", "jun", "kel", "lor",
    "mar", "nev", "or", "pell", "quin", "ras", "sol", "tam", "ul", "ven", "wes", "yor", "zan",
)  # fmt: skip
KINDS = (("person", 0.4), ("city", 0.2), ("company", 0.15), ("university", 0.1), ("film", 0.15))
NAMES = {
    "city": "{}",
    "company": "{} Works",
    "university": "University of {}",
    "film": "The {} Affair",
}


@dataclass(frozen=True, slots=True)
class Relation:
    """`noun` of an entity is one entity of the kind `to`; `told` are ways to say so."""

    noun: str
    to: str
    told: tuple[str, ...]


RELATIONS: dict[str, tuple[Relation, ...]] = {
    "person": (
        Relation("birthplace", "city", ("{0} was born in {1}.", "The birthplace of {0} is {1}.")),
        Relation("employer", "company", ("{0} works for {1}.", "{0} is employed by {1}.")),
        Relation("spouse", "person", ("{0} is married to {1}.", "The spouse of {0} is {1}.")),
        Relation("school", "university", ("{0} studied at {1}.", "{0} left {1} with a degree.")),
    ),
    "city": (
        Relation("twin town", "city", ("{0} is twinned with {1}.", "The twin town of {0} is {1}.")),
        Relation("mayor", "person", ("{1} is the mayor of {0}.", "The mayor of {0} is {1}.")),
    ),
    "company": (
        Relation("founder", "person", ("{1} founded {0}.", "{0} was started by {1}.")),
        Relation("home town", "city", ("{0} has its head office in {1}.", "{0} is based in {1}.")),
    ),
    "university": (
        Relation("rector", "person", ("{1} is the rector of {0}.", "{0} is headed by {1}.")),
        Relation("campus town", "city", ("The campus of {0} is in {1}.", "{0} lies in {1}.")),
    ),
    "film": (
        Relation("director", "person", ("{0} was directed by {1}.", "{1} is the director of {0}.")),
        Relation("setting", "city", ("{0} is set in {1}.", "The story of {0} takes place in {1}.")),
    ),
}  # fmt: skip
FILLER = (
    "Records from that time are incomplete.",
    "Visitors often remark on the quiet of the place and the patience of its people.",
    "A short account was printed in a local paper, and little has been added since.",
    "Several letters are kept in the archive, most of them about the weather and the harvest.",
    "The matter was discussed at length, though no decision has been written down.",
    "An exhibition some years later drew more people than anybody had expected.",
    "Nothing more is said about it in the usual works of reference.",
)


@dataclass(frozen=True, slots=True)
class Entity:
    """One thing with its facts: `facts[i]` is the entity that relation i leads to."""

    kind: str
    name: str
    year: int
    facts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """
    Attributes:
        text, answer: What is asked, and what is right.
        kind: `chain2` to `chain4`, or `compare`.
        documents: Entities whose documents answer, in the order in which they are needed.
    """

    text: str
    answer: str
    kind: str
    documents: tuple[int, ...]


class World:
    """Entities with a document each; the same seed and size give the same world."""

    def __init__(self, seed: int, size: int) -> None:
        rng = random.Random(seed)
        kinds = [kind for kind, _ in KINDS]
        drawn = rng.choices(kinds, [share for _, share in KINDS], k=size)
        # Each kind is led to by some relation.
        drawn[: 2 * len(kinds)] = kinds * 2
        self.of_kind = {kind: [i for i, one in enumerate(drawn) if one == kind] for kind in kinds}
        names = _names(rng, drawn)
        self.entities = [
            Entity(
                kind,
                names[i],
                rng.randrange(1500, 2000),
                tuple(self._other(rng, relation.to, i) for relation in RELATIONS[kind]),
            )
            for i, kind in enumerate(drawn)
        ]
        self._seed = seed

    def document(self, place: int) -> str:
        """The document of an entity: its name, its facts in some order, and words around them."""
        rng = random.Random(self._seed * 1_000_003 + place)
        entity = self.entities[place]
        sentences = [
            rng.choice(relation.told).format(entity.name, self.entities[other].name)
            for relation, other in zip(RELATIONS[entity.kind], entity.facts, strict=True)
        ]
        sentences.append(f"The year given for {entity.name} is {entity.year}.")
        sentences += rng.sample(FILLER, 5)
        rng.shuffle(sentences)
        return f"{entity.name}\n{' '.join(sentences)}"

    def question(self, seed: int, hops: int, *, compare: bool = False) -> Question:
        """A question over `hops` documents, or one that compares two; the seed draws it.

        No document answers two hops, and the answer does not stand in the question.
        """
        rng = random.Random(seed)
        while True:
            found = self._comparison(rng) if compare else self._chain(rng, hops)
            if found is not None:
                return found

    def _other(self, rng: random.Random, kind: str, but: int) -> int:
        while True:
            found = rng.choice(self.of_kind[kind])
            if found != but:
                return found

    def _chain(self, rng: random.Random, hops: int) -> Question | None:
        at = rng.randrange(len(self.entities))
        start, path, words = at, [at], ""
        for _ in range(hops):
            number = rng.randrange(len(RELATIONS[self.entities[at].kind]))
            words = f"the {RELATIONS[self.entities[at].kind][number].noun} of {words}"
            words = words if len(path) > 1 else f"{words}\0"
            at = self.entities[at].facts[number]
            path.append(at)
        if len(set(path)) < len(path):
            return None
        name, answer = self.entities[start].name, self.entities[at].name
        if answer in name or name in answer:
            return None
        phrase = words.replace("\0", name)
        return Question(f"What is the name of {phrase}?", answer, f"chain{hops}", tuple(path[:-1]))

    def _comparison(self, rng: random.Random) -> Question | None:
        kind = rng.choice([kind for kind, _ in KINDS])
        first, second = rng.sample(self.of_kind[kind], 2)
        one, other = self.entities[first], self.entities[second]
        if one.year == other.year:
            return None
        answer = one.name if one.year < other.year else other.name
        text = f"Which has the earlier year given for it, {one.name} or {other.name}?"
        return Question(text, answer, "compare", (first, second))


@lru_cache(maxsize=4)
def make_world(seed: int, size: int) -> World:
    """The world of a seed, made once."""
    return World(seed, size)


def _names(rng: random.Random, kinds: Sequence[str]) -> list[str]:
    surnames = [_word(rng) for _ in range(max(8, len(kinds) // 6))]
    taken: set[str] = set()
    names = []
    for kind in kinds:
        while True:
            if kind == "person":
                name = f"{_word(rng)} {rng.choice(surnames)}"
            else:
                name = NAMES[kind].format(_word(rng))
            if name not in taken:
                break
        taken.add(name)
        names.append(name)
    return names


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(SYLLABLES, k=rng.randrange(2, 5))).capitalize()

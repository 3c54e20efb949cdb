"""Generated texts with a question that two of their sentences answer.

A text is a list of sentences, each a fact of a random graph of people and towns that exists for
this text alone: nothing can be known before it is read. The facts asked for (gold) stand at places
drawn uniformly; all others are distractors, half of which share the person or the relation with a
gold one. A sentence has five words and signs, each a token of the shipped policy's.

| kind   | question                                    | gold                   | orders    |
|--------|---------------------------------------------|------------------------|-----------|
| both   | Where do X and Y live?                      | the homes of X and Y   | random    |
| bridge | Where does the one whom X learns from live? | who it is, and a home  | all three |

The order is that of a bridge's gold facts: forward (who it is, then where), reverse, or random. In
reverse order a reader that overwrites its memory can't know that the home counts when it sees it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from turnwise.rollout import derive_seed

Kind = Literal["both", "bridge"]
EvidenceOrder = Literal["forward", "random", "reverse"]
Split = Literal["train", "held-out", "tune"]
SPLITS: tuple[Split, ...] = get_args(Split)

NAMES = (
    "Ada", "Bela", "Cora", "Dov", "Edda", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kofi", "Lena",
    "Milo", "Nora", "Otto", "Pia", "Rafe", "Sana", "Tove", "Uma", "Vera", "Wim", "Yara", "Zeno",
    "Abel", "Britt", "Carl", "Dunya", "Emil", "Falko", "Greta", "Holm", "Isak", "Jonas", "Klara",
    "Lund", "Moss", "Nagy", "Oriel", "Pell", "Quist", "Rask", "Stern", "Thal", "Ulrik", "Vogt",
    "Wolff", "Zander", "Agnes", "Boris", "Celia", "Dario", "Elsa", "Frida", "Gino", "Heidi",
    "Igor", "Julia", "Karin", "Lars", "Marta", "Nils", "Olga", "Paulo", "Rosa", "Sven", "Tessa",
    "Ugo", "Viggo", "Walter", "Xenia", "Yannis", "Aldo", "Berta", "Cyril", "Dora", "Enzo", "Fleur",
    "Gerd", "Hugo", "Ilse", "Joost", "Kira", "Leif", "Mona", "Noor", "Orson", "Petra", "Quinn",
    "Rolf", "Selma", "Timo", "Ursel", "Vito", "Wanda", "Xaver", "Ylva", "Zita", "Anton", "Beate",
    "Cleo", "Denis", "Esra", "Fritz", "Gaston", "Helga", "Imre", "Jasper", "Kuno", "Lotte",
    "Magda", "Norbert", "Odile", "Pablo", "Renata", "Silas", "Tilda", "Uwe", "Valentin", "Wenzel",
    "Yorick", "Zelda", "Anouk", "Bruno", "Clara", "Detlef", "Elio", "Fanny", "Gisela", "Horst",
    "Irma", "Jakob", "Kasper", "Luise", "Marek", "Nadja", "Oskar", "Paula", "Ruben", "Stina",
    "Tibor", "Urban", "Velma", "Wilma",
)  # fmt: skip
TOWNS = (
    "Arlen", "Borsk", "Calder", "Dorne", "Elvas", "Fenwick", "Garda", "Harwich", "Imola", "Jarrow",
    "Kelso", "Lorca", "Mirfield", "Narva", "Oban", "Pernik", "Quimper", "Rovigo", "Seaton",
    "Tarsus", "Ubeda", "Varese", "Whitby", "Zadar",
)  # fmt: skip
HOME = "lives in"
PEOPLE_RELATIONS = ("learns from", "sings with", "works for", "writes to")


@dataclass(frozen=True, slots=True)
class Fact:
    """`subject` `relation` `value`, as in "Ada lives in Oban"."""

    relation: str
    subject: str
    value: str

    @property
    def text(self) -> str:
        return f"{self.subject} {self.relation} {self.value}."


def spaced(facts: Sequence[Fact]) -> str:
    """Facts as a text. Each sentence has a space before it, the first one too: so a name is the
    same token wherever it stands, and a sentence the same ids."""
    return "".join(f" {fact.text}" for fact in facts)


@dataclass(frozen=True, slots=True)
class Story:
    """A text with its question.

    Attributes:
        id: `bridge-forward/12`.
        kind, order: See the module.
        question, answer: What is asked, and what is right.
        facts: The text, a sentence each.
        gold: Places of the facts that answer, in the order in which they are needed.
    """

    id: str
    kind: Kind
    order: EvidenceOrder
    question: str
    answer: str
    facts: Sequence[Fact]
    gold: tuple[int, int]

    @property
    def text(self) -> str:
        return spaced(self.facts)


def make_story(seed: int, name: str, *, kind: Kind, order: EvidenceOrder, sentences: int) -> Story:
    """The story of a seed, with a text of `sentences` facts; all draws come from the seed."""
    rng = random.Random(seed)
    people = list(NAMES)
    rng.shuffle(people)
    asked, other = people.pop(), people.pop()
    town, second = rng.sample(TOWNS, 2)
    if kind == "both":
        gold = (Fact(HOME, asked, town), Fact(HOME, other, second))
        question = f"Where do {asked} and {other} live?"
        answer = f"{town} and {second}"
    else:
        relation = rng.choice(PEOPLE_RELATIONS)
        gold = (Fact(relation, asked, other), Fact(HOME, other, town))
        question = f"Where does the one whom {asked} {relation} live?"
        answer = town
    places = sorted(rng.sample(range(sentences), 2))
    if order == "reverse" or (order == "random" and rng.random() < 0.5):
        places.reverse()
    taken = {(fact.relation, fact.subject) for fact in gold}
    facts = [_distractor(rng, people, gold, taken) for _ in range(sentences)]
    for place, fact in zip(places, gold, strict=True):
        facts[place] = fact
    first, last = places
    return Story(name, kind, order, question, answer, facts, (first, last))


def _distractor(
    rng: random.Random,
    people: Sequence[str],
    gold: Sequence[Fact],
    taken: set[tuple[str, str]],
) -> Fact:
    """A fact that no other contradicts: a relation of a person is given once."""
    while True:
        relation, subject = rng.choice((HOME, *PEOPLE_RELATIONS)), rng.choice(people)
        near, how = rng.choice(gold), rng.random()
        if how < 0.25:
            relation = near.relation
        elif how < 0.5:
            subject = near.subject
        if (relation, subject) not in taken:
            break
    taken.add((relation, subject))
    return Fact(relation, subject, rng.choice(TOWNS if relation == HOME else people))


def make_stories(
    split: Split,
    cells: Sequence[tuple[Kind, EvidenceOrder, int]],
    *,
    seed: int,
    sentences: int,
) -> list[Story]:
    """Stories of a split: for each cell of kind and order as many as it says."""
    return [
        make_story(
            derive_seed(seed, split, sentences, kind, order, number),
            f"{kind}-{order}/{number}",
            kind=kind,
            order=order,
            sentences=sentences,
        )
        for kind, order, count in cells
        for number in range(count)
    ]

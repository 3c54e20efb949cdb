"""A corpus in plain English, whose questions say the same in other words.

A document is a sentence of a time, a person, an act, a thing and a place, each from a list of
pairs, and one of a name that nobody asks for. A question names four of the five; each is its
document's word or, with probability `SYNONYM`, the other of the pair, which stands in no document.
"""

from __future__ import annotations

import numpy as np

from benchmarks.retrieval.workload import Workload

SYNONYM = 0.4
ASKED = 4
TIMES = (
    "at dawn|early in the morning", "at dusk|as evening fell", "in autumn|when leaves drop",
    "in winter|during the cold season", "at noon|in the middle of the day",
    "at midnight|in the dead of night", "in a storm|in very bad weather",
    "during the war|amid the fighting", "on a holiday|on a day off work",
    "after the fire|following the blaze", "before the wedding|ahead of the marriage",
    "last summer|in the hot months",
)  # fmt: skip
PEOPLE = (
    "doctor|physician", "lawyer|attorney", "teacher|educator", "sailor|mariner", "farmer|grower",
    "thief|burglar", "writer|author", "soldier|trooper", "baker|maker of bread", "tailor|seamster",
    "priest|clergyman", "painter|artist",
)  # fmt: skip
ACTS = (
    "bought|purchased", "repaired|mended", "hid|concealed", "sold|traded away",
    "built|constructed", "found|discovered", "broke|shattered", "carried|transported",
    "stole|took unlawfully", "cleaned|scrubbed", "drew|sketched", "lost|mislaid",
)  # fmt: skip
THINGS = (
    "car|automobile", "boat|small ship", "gun|firearm", "stone|rock", "coat|jacket",
    "picture|portrait", "ring|band of gold", "clock|timepiece", "bag|sack", "horse|steed",
    "letter|written message", "lamp|lantern",
)  # fmt: skip
PLACES = (
    "harbour|port", "forest|woods", "shop|store", "street|road", "church|chapel",
    "castle|fortress", "hospital|clinic", "prison|jail", "school|academy", "mountain|peak",
    "river|stream", "theatre|playhouse",
)  # fmt: skip
SLOTS = tuple(
    tuple(tuple(pair.split("|")) for pair in slot) for slot in (TIMES, PEOPLE, ACTS, THINGS, PLACES)
)
FORMS = ("{}", "the {}", "{}", "the {}", "near the {}")
SYLLABLES = ("ar", "bel", "cor", "dun", "el", "fa", "gor", "hil", "is", "jo", "ka", "len", "mor")


def generate(documents: int, questions: int, seed: int) -> Workload:
    """The same for the same numbers."""
    random = np.random.default_rng(seed)
    drawn = random.integers(len(TIMES), size=(documents, len(SLOTS)))
    names = random.choice(SYLLABLES, size=(documents, 3))
    texts = [
        f"{_said(row, [0] * len(row))}. {''.join(name).title()} told of it."
        for row, name in zip(drawn, names, strict=True)
    ]
    relevant = random.integers(documents, size=questions)
    asked = []
    for position in relevant:
        kept = np.sort(random.choice(len(SLOTS), size=ASKED, replace=False))
        other = (random.random(len(SLOTS)) < SYNONYM).astype(int)
        asked.append(_said(drawn[position], list(other), list(kept)))
    return Workload(texts, asked, relevant.tolist())


def _said(row: np.ndarray, which: list[int], kept: list[int] | None = None) -> str:
    places = range(len(SLOTS)) if kept is None else kept
    return " ".join(FORMS[at].format(SLOTS[at][row[at]][which[at]]) for at in places)

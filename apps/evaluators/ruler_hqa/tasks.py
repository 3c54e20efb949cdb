"""RULER's own tasks, generated after their published specification (Hsieh et al. 2024).

| task                | text                            | asked, and what is right                |
|---------------------|---------------------------------|-----------------------------------------|
| niah_single_1, 2, 3 | noise, prose, prose             | the one value of a key: 7 digits; 3: a  |
|                     |                                 | code of 32 hex digits                   |
| niah_multikey_1     | prose, 4 keys                   | the value of one of them                |
| niah_multikey_2, 3  | nothing but keys with values    | the value of one of them; 3: codes      |
| niah_multivalue     | prose, one key with 4 values    | all of them                             |
| niah_multiquery     | prose, 4 keys                   | the values of all                       |
| vt                  | noise, a chain of 5 variables   | all that hold the number                |
| cwe                 | words: ten 30 times, others 3   | the ten                                 |
| fwe                 | words by a power law            | the second to fourth most frequent      |

Texts, words and prompts are ours, so scores are of `TEMPLATE_ID` and not comparable with published
ones. Otherwise than there, every place is drawn anew for each item, keys are distinct, and the
length counts sentences or words.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from turnwise.rows import Row

from apps.evaluators.ruler_hqa.world import FILLER, SYLLABLES

TEMPLATE_ID = "turnwise-1"
NOISE = (
    "The road goes on.",
    "Rain falls on the hill.",
    "A bird sits on the wall.",
    "The river is wide here.",
    "Then the lamp is lit again.",
)
CHAIN, COMMON, OFTEN, SELDOM = 5, 10, 30, 3
EXPONENT = 2.0
"""Of fwe's power law: rank k comes in proportion to k^-2."""

Made = tuple[str, str, Sequence[str]]
"""Text, question and references."""


def make_item(task: str, length: int, seed: int, number: int) -> Row:
    """Item `number` of a task.

    Args:
        task: A name of `TASKS`.
        length: Sentences of the text, or words of cwe and fwe.
        seed: Of the item alone.

    Raises:
        ValueError: the length has no room for what is asked.
    """
    text, question, references = TASKS[task](random.Random(seed), length)
    return Row(
        question,
        {"ground_truth": list(references), "task": task, "template": TEMPLATE_ID},
        {"context": text, "part": f"{length}"},
        id=f"{task}/{length}/{number}",
        where=f"{task}, item {number} of length {length}",
    )


def needle(key: str, value: str) -> str:
    """The sentence that gives a key's value."""
    return f"One of the secret values of {key} is {value}."


def _asked(keys: Sequence[str], count: int) -> str:
    named = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"
    what = "What is the secret value" if count == 1 else "What are all the secret values"
    return f"{what} of {named} that the text mentions?"


def _niah(
    *, haystack: str, keys: int = 1, values: int = 1, queries: int = 1, codes: bool = False
) -> Callable[[random.Random, int], Made]:
    def make(rng: random.Random, length: int) -> Made:
        count = length if haystack == "needles" else keys
        named = codes and haystack == "needles"
        names = [_code(rng) for _ in range(count)] if named else _distinct(rng, count)
        given = {
            key: [_code(rng) if codes else _number(rng) for _ in range(values)] for key in names
        }
        sentences = [needle(key, value) for key, all_ in given.items() for value in all_]
        rng.shuffle(sentences)
        asked = rng.sample(list(given), queries)
        if haystack != "needles":
            prose = NOISE if haystack == "noise" else FILLER
            sentences = _spread(rng, [prose[i % len(prose)] for i in range(length)], sentences)
        references = [value for key in asked for value in given[key]]
        return _joined(sentences, haystack), _asked(asked, len(references)), references

    return make


def _vt(rng: random.Random, length: int) -> Made:
    names: set[str] = set()
    while len(names) < CHAIN:
        names.add("".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=5)))
    chain = sorted(names)
    rng.shuffle(chain)
    number = f"{rng.randrange(10_000, 100_000)}"
    lines = [f"VAR {chain[0]} = {number}."]
    lines += [f"VAR {name} = VAR {last}." for last, name in zip(chain, chain[1:], strict=False)]
    noise = [NOISE[i % len(NOISE)] for i in range(length)]
    text = _joined(_spread(rng, noise, lines, shuffled=False), "noise")
    return text, f"Which variables hold the number {number}? Name all five.", chain


def _cwe(rng: random.Random, length: int) -> Made:
    others = (length - COMMON * OFTEN) // SELDOM
    if others < 1:
        raise ValueError(f"cwe: {length} words leave no room; give {COMMON * OFTEN + SELDOM}")
    words = _distinct(rng, COMMON + others)
    listed = words[:COMMON] * OFTEN + words[COMMON:] * SELDOM
    rng.shuffle(listed)
    text = " ".join(f"{number}. {word}" for number, word in enumerate(listed, start=1))
    return text, "Which ten words come most often in this list?", words[:COMMON]


def _fwe(rng: random.Random, length: int) -> Made:
    words = _distinct(rng, max(10, length // 50))
    weights = [rank**-EXPONENT for rank in range(1, len(words) + 1)]
    counts = [max(1, int(length * weight / sum(weights))) for weight in weights]
    if len(set(counts[:5])) < 5:
        raise ValueError(f"fwe: {length} words are too few to tell frequencies apart; give 500")
    listed = ["..."] * counts[0]
    for word, count in zip(words[1:], counts[1:], strict=True):
        listed += [word] * count
    rng.shuffle(listed)
    question = "Leaving the dots aside, which three words come most often in this text?"
    return " ".join(listed), question, words[1:4]


def _spread(
    rng: random.Random, haystack: list[str], lines: Sequence[str], *, shuffled: bool = True
) -> list[str]:
    """The lines at places of their own, drawn uniformly; in order unless shuffled."""
    places = sorted(rng.sample(range(len(haystack) + len(lines)), len(lines)))
    if shuffled:
        rng.shuffle(places)
    at = dict(zip(places, lines, strict=True))
    rest = iter(haystack)
    return [at[i] if i in at else next(rest) for i in range(len(haystack) + len(lines))]


def _joined(sentences: Sequence[str], haystack: str) -> str:
    return (" " if haystack == "prose" else "\n").join(sentences)


def _distinct(rng: random.Random, count: int) -> list[str]:
    """Different words; none is found within another, since each ends where its hyphen stands."""
    words: dict[str, None] = {}
    while len(words) < count:
        words[f"{''.join(rng.choices(SYLLABLES, k=3))}-{rng.randrange(100, 1000)}"] = None
    return list(words)


def _number(rng: random.Random) -> str:
    return f"{rng.randrange(10**6, 10**7)}"


def _code(rng: random.Random) -> str:
    return f"{rng.getrandbits(128):032x}"


TASKS: dict[str, Callable[[random.Random, int], Made]] = {
    "niah_single_1": _niah(haystack="noise"),
    "niah_single_2": _niah(haystack="prose"),
    "niah_single_3": _niah(haystack="prose", codes=True),
    "niah_multikey_1": _niah(haystack="prose", keys=4),
    "niah_multikey_2": _niah(haystack="needles"),
    "niah_multikey_3": _niah(haystack="needles", codes=True),
    "niah_multivalue": _niah(haystack="prose", values=4),
    "niah_multiquery": _niah(haystack="prose", keys=4, queries=4),
    "vt": _vt,
    "cwe": _cwe,
    "fwe": _fwe,
}

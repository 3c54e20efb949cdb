"""Readers with lapses, whose turns the shipped policy learns before reinforcement.

A reader knows what the question needs: facts of the people it names, and of whom a fact leads to.
It then lapses by chance, for each sentence anew:

| lapse                                            | chance (default) |
|--------------------------------------------------|------------------|
| a sentence that counts is overlooked             | 0.15             |
| a kept sentence that counts is forgotten         | 0.03             |
| a kept sentence that does not count is forgotten | 0.4              |
| a sentence that does not count is written down   | 0.02             |

The answer is read off the memory where that holds it, and otherwise guessed from its words. So the
policy can do all that is needed, and does too little of it: what to keep is left to the reward.
The rows are those that the episode loop makes when a policy says the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from turnwise.local.demonstrations import Demonstrations
from turnwise.rollout import derive_seed

from apps.trainers.memagent.laptop.stories import MIX, SENTENCES
from apps.trainers.memagent.laptop.world import HOME, TOWNS, Fact, Story, make_story, spaced
from apps.trainers.memagent.template import Ids, Template

SECTION = 5
"""Sentences of a section; `chunk-tokens` of the laptop preset are their tokens."""
KEPT = 3
"""Sentences of a memory at most; they fit the laptop preset's limit."""


@dataclass(frozen=True, slots=True)
class Lapses:
    """Chances of a reader's lapses; see the module."""

    overlook: float = 0.15
    forget: float = 0.03
    discard: float = 0.4
    clutter: float = 0.02


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a reader.

    Attributes:
        memory: The facts that it is shown as its memory.
        section: Those of the section; none where it is asked for the answer.
        said: The next memory's facts, or the answer.
        flawed: Whether it lapsed, or has to guess.
    """

    memory: Sequence[Fact]
    section: Sequence[Fact]
    said: Sequence[Fact] | str
    flawed: bool


def read(story: Story, rng: random.Random, lapses: Lapses) -> Iterator[Turn]:
    """The turns of a reader on a story, the answer last."""
    memory: list[Fact] = []
    for start in range(0, len(story.facts), SECTION):
        section = story.facts[start : start + SECTION]
        kept, flawed = _remember(story, memory, section, rng, lapses)
        yield Turn(memory, section, kept, flawed)
        memory = kept
    yield _answer(story, memory, rng)


def _remember(
    story: Story,
    memory: Sequence[Fact],
    section: Sequence[Fact],
    rng: random.Random,
    lapses: Lapses,
) -> tuple[list[Fact], bool]:
    first, second = (story.facts[place] for place in story.gold)
    needed = {first, second} if story.kind == "both" or first in (*memory, *section) else {first}
    kept, flawed = [], False
    for fact in memory:
        forgotten = rng.random() < (lapses.forget if fact in needed else lapses.discard)
        flawed |= forgotten == (fact in needed)
        if not forgotten:
            kept.append(fact)
    for fact in section:
        written = rng.random() < (1 - lapses.overlook if fact in needed else lapses.clutter)
        flawed |= written != (fact in needed)
        if written and len(kept) < KEPT:
            kept.append(fact)
    return kept, flawed


def _answer(story: Story, memory: Sequence[Fact], rng: random.Random) -> Turn:
    gold = [story.facts[place] for place in story.gold]
    towns = [fact.value for fact in memory if fact.relation == HOME] or TOWNS
    asked = gold if story.kind == "both" else gold[1:]
    said = [fact.value if fact in memory else rng.choice(towns) for fact in asked]
    return Turn(memory, (), " and ".join(said), not set(asked) <= set(memory))


def demonstrated(seed: int, indices: Iterable[int], longest: int = SENTENCES) -> Iterator[Story]:
    """Stories of a seed by their numbers, of different lengths; none is of a run's splits."""
    cells = [(kind, order) for kind, order, weight in MIX for _ in range(weight)]
    for index in indices:
        rng = random.Random(derive_seed(seed, "demonstration", index))
        kind, order = rng.choice(cells)
        yield make_story(
            rng.randrange(2**63),
            f"demonstration/{index}",
            kind=kind,
            order=order,
            sentences=rng.randrange(SECTION, longest + 1),
        )


def record(
    template: Template,
    end: int,
    *,
    seed: int,
    indices: range,
    lapses: Lapses,
    longest: int = SENTENCES,
) -> Demonstrations:
    """Demonstrations of a seed by their numbers, every turn a row that ends with `end`."""
    encoded: dict[Fact | str, Ids] = {}

    def encode(text: Fact | str) -> Ids:
        if text not in encoded:
            encoded[text] = template.encode(text if isinstance(text, str) else f" {text.text}")
        return encoded[text]

    def memory(facts: Sequence[Fact]) -> Ids:
        return np.concatenate([encode(fact) for fact in facts]) if facts else template.nothing

    prompts: list[Ids] = []
    replies: list[Ids] = []
    flawed: list[bool] = []
    for index, story in zip(indices, demonstrated(seed, indices, longest), strict=True):
        problem = template.encode(story.question)
        for turn in read(story, random.Random(derive_seed(seed, "lapses", index)), lapses):
            shown = memory(turn.memory)
            if isinstance(turn.said, str):
                prompts.append(template.final(problem, shown))
                said = encode(f" {turn.said}")
            else:
                prompts.append(template.update(problem, shown, memory(turn.section)))
                said = memory(turn.said)
            replies.append(np.append(said, np.int32(end)))
            flawed.append(turn.flawed)
    return joined(prompts, replies, flawed)


def joined(
    prompts: Sequence[Ids], replies: Sequence[Ids], flawed: Sequence[bool]
) -> Demonstrations:
    """Rows of a prompt and what is to be learnt after it."""
    pairs = [part for pair in zip(prompts, replies, strict=True) for part in pair]
    sizes = np.array([len(part) for part in pairs])
    return Demonstrations(
        ids=np.concatenate(pairs).astype(np.uint16),
        trained=np.repeat(np.arange(len(pairs)) % 2 == 1, sizes),
        offsets=np.concatenate([[0], np.cumsum(sizes)[1::2]]).astype(np.int64),
        flawed=np.array(flawed, dtype=bool),
    )


def corpus(prompts: Sequence[str], *, seed: int, count: int) -> Iterator[str]:
    """What a policy reads and writes on `count` texts, to learn the tokenizer from."""
    for story in demonstrated(seed, range(count)):
        yield from (f"user\n{prompt}" for prompt in prompts)
        yield f" {story.question}\n{spaced(story.facts)}\n"
        yield f"assistant\n{spaced(story.facts)}"
        yield f"assistant\n {story.answer}"

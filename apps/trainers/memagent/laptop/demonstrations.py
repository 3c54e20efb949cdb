"""Readers with lapses, whose turns the shipped policy learns before reinforcement.

A reader knows what the question needs: facts of the people it names, and of whom a kept fact leads
to. It then lapses by chance, for each sentence anew:

| lapse                                            | chance (default) |
|--------------------------------------------------|------------------|
| a sentence that counts is overlooked             | 0.25             |
| a kept sentence that counts is forgotten         | 0.08             |
| a kept sentence that does not count is forgotten | 0.4              |
| a sentence that does not count is written down   | 0.08             |

The answer is read off the memory where that holds it, and otherwise guessed from its words. So the
policy can do all that is needed, and does too little of it: what to keep is left to the reward.
Episodes go through the loop that training and evaluation use.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokendelta
from numpy.typing import NDArray
from turnwise.engine import Completion, SamplingParams
from turnwise.local.demonstrations import Demonstrations
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed

from apps.trainers.memagent.laptop.baselines import FACT, below
from apps.trainers.memagent.laptop.stories import MIX
from apps.trainers.memagent.laptop.world import TOWNS, Fact, Story, make_story
from apps.trainers.memagent.method import MemAgentMethod
from apps.trainers.memagent.task import Task

LONGEST = 24
"""Sentences of a demonstration's text at most, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Lapses:
    """Chances of a reader's lapses; see the module."""

    overlook: float = 0.25
    forget: float = 0.08
    discard: float = 0.4
    clutter: float = 0.08


class Reader:
    """Says the turns of one demonstration. Keeps the engine contract.

    Attributes:
        flawed: For each turn so far, whether it lapsed.
    """

    def __init__(
        self, story: Story, rng: random.Random, lapses: Lapses, tokenizer: Any, most: int
    ) -> None:
        self._story, self._rng, self._lapses = story, rng, lapses
        self._tokenizer, self._most = tokenizer, most
        self.flawed: list[bool] = []

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        text = str(self._tokenizer.decode(prompt_ids.tolist(), skip_special_tokens=False))
        notes = below("Notes", text)
        if "\nSection\n" in text:
            said = self._remember(notes, below("Section", text))
        else:
            said = self._answer(notes)
        ids = [*self._tokenizer.encode(said, add_special_tokens=False)]
        ids.append(self._tokenizer.eos_token_id)
        return Completion(
            np.array(ids, dtype=np.int32), np.zeros(len(ids), dtype=np.float32), "stop"
        )

    async def release(self, session_id: str) -> None:
        return None

    async def close(self) -> None:
        return None

    def _remember(self, notes: str, section: str) -> str:
        lapses, kept, flawed = self._lapses, [], False
        for fact in facts(notes):
            counts = self._counts(fact, notes)
            gone = self._rng.random() < (lapses.forget if counts else lapses.discard)
            flawed |= gone == counts
            if not gone:
                kept.append(fact)
        for fact in facts(section):
            known = " ".join(fact.text for fact in kept)
            counts = self._counts(fact, known)
            chance = 1 - lapses.overlook if counts else lapses.clutter
            written = self._rng.random() < chance
            flawed |= written != counts
            if written and len(kept) < self._most and fact not in kept:
                kept.append(fact)
        self.flawed.append(bool(flawed))
        return " ".join(fact.text for fact in kept) or "none"

    def _counts(self, fact: Fact, notes: str) -> bool:
        """Whether the question needs a fact, as far as the notes tell."""
        first, second = (self._story.facts[place] for place in self._story.gold)
        known = self._story.kind == "both" or first.text in notes
        return fact == first or (known and fact == second)

    def _answer(self, notes: str) -> str:
        self.flawed.append(False)
        found = {(fact.relation, fact.subject): fact.value for fact in facts(notes)}
        gold = [self._story.facts[place] for place in self._story.gold]
        needed = gold if self._story.kind == "both" else gold[1:]
        towns = [found.get((fact.relation, fact.subject)) for fact in needed]
        guesses = [value for value in found.values() if value in TOWNS] or list(TOWNS)
        return " and ".join(town or self._rng.choice(guesses) for town in towns)


def facts(text: str) -> list[Fact]:
    """The whole sentences of a text."""
    return [Fact(found[1], found[2], found[3]) for found in FACT.finditer(text)]


def demonstrated(seed: int, count: int, longest: int = LONGEST) -> Iterator[Story]:
    """Story 0 to count - 1 of a seed, of different lengths; none is of a run's splits."""
    cells = [(kind, order) for kind, order, weight in MIX for _ in range(weight)]
    for index in range(count):
        rng = random.Random(derive_seed(seed, "demonstration", index))
        kind, order = rng.choice(cells)
        yield make_story(
            rng.randrange(2**63),
            f"demonstration/{index}",
            kind=kind,
            order=order,
            sentences=rng.randrange(4, longest + 1),
        )


async def record(
    method: MemAgentMethod,
    tokenizer: Any,
    profile: tokendelta.Profile,
    *,
    seed: int,
    count: int,
    lapses: Lapses,
    most: int,
    longest: int = LONGEST,
) -> Demonstrations:
    """Plays demonstrations 0 to count - 1 of a seed, every turn a row.

    Raises:
        RuntimeError: an episode was lost.
    """
    samples: list[tokendelta.Sample] = []
    flawed: list[bool] = []
    for index, story in enumerate(demonstrated(seed, count, longest)):
        rng = random.Random(derive_seed(seed, "lapses", index))
        reader = Reader(story, rng, lapses, tokenizer, most)
        policy = Policy(engine=reader, profile=profile, max_context_tokens=1_024)
        task = Task(story.question, story.text, (story.answer,), story.id)
        rollout = Rollout(task, story.id, rollout_id=story.id, group_id=story.id, seed=index)
        episode = await method.run(rollout, policy)
        if not episode.ending.by_policy:
            raise RuntimeError(f"{story.id}: {episode.ending.label}: {episode.ending.error}")
        samples += episode.segments
        flawed += reader.flawed
        if index % 64 == 0:
            await asyncio.sleep(0)
    return _joined(samples, flawed)


def _joined(samples: Sequence[tokendelta.Sample], flawed: Sequence[bool]) -> Demonstrations:
    trained = [np.concatenate([np.zeros(s.prompt_length), s.loss_mask]) > 0 for s in samples]
    lengths = [len(sample.ids) for sample in samples]
    return Demonstrations(
        ids=np.concatenate([sample.ids for sample in samples]).astype(np.uint16),
        trained=np.concatenate(trained),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        flawed=np.array(flawed, dtype=bool),
    )


def corpus(prompts: Sequence[str], *, seed: int, count: int) -> Iterator[str]:
    """What a policy reads and writes on `count` texts, to learn the tokenizer from."""
    for story in demonstrated(seed, count):
        yield from (f"user\n{prompt}" for prompt in prompts)
        yield f" {story.question}\n {story.text}\n"
        yield f"assistant\n{story.text}"
        yield f"assistant\n{story.answer}"

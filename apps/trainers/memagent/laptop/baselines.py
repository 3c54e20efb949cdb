"""What fixed ways to read score on the generated texts."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import tokendelta
from numpy.typing import NDArray
from turnwise.command import PreflightError
from turnwise.engine import Completion, SamplingParams
from turnwise.episode import Episode
from turnwise.policy import Policy
from turnwise.rollout import Rollout

from apps.trainers.memagent.laptop.world import HOME, PEOPLE_RELATIONS, TOWNS, Fact, spaced
from apps.trainers.memagent.task import Task

Habit = Literal[
    "an empty memory", "the first section", "the last section", "what counts", "the whole text"
]
HABITS: Sequence[Habit] = get_args(Habit)
_RELATIONS = (HOME, *PEOPLE_RELATIONS)
FACT = re.compile(rf"(\w+) ({'|'.join(_RELATIONS)}) (\w+)\.")
_PEOPLE = re.compile(r"[A-Z]\w+")
Play = Callable[[Rollout[Task], Policy], Awaitable[Episode]]


class FixedReader:
    """Keeps sentences by habit and answers exactly from what it keeps. Keeps the engine's
    contract; what it keeps has no limit, since it never goes through the memory's ids."""

    def __init__(self, habit: Habit, tokenizer: Any) -> None:
        self._habit, self._tokenizer = habit, tokenizer
        self._kept = ""
        self._sections = 0

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        text = str(self._tokenizer.decode(prompt_ids.tolist(), skip_special_tokens=False))
        question = below("Problem", text)
        said = "none"
        if "\nSection\n" in text:
            self._kept = self._keep(question, below("Section", text))
            self._sections += 1
        else:
            said = answer(question, self._kept)
        ids = [*self._tokenizer.encode(said, add_special_tokens=False)]
        ids.append(self._tokenizer.eos_token_id)
        return Completion(
            np.array(ids, dtype=np.int32), np.zeros(len(ids), dtype=np.float32), "stop"
        )

    def _keep(self, question: str, section: str) -> str:
        match self._habit:
            case "an empty memory":
                return ""
            case "the first section":
                return self._kept if self._sections else section
            case "the last section":
                return section
            case "what counts":
                return what_counts(question, self._kept + section)
            case "the whole text":
                return self._kept + section

    async def release(self, session_id: str) -> None:
        return None

    async def close(self) -> None:
        return None


def asked(question: str) -> tuple[str | None, list[str]]:
    """The relation that leads from the person it names to whom it is about, and those it names."""
    people = _PEOPLE.findall(question.removeprefix("Where"))
    return next((one for one in PEOPLE_RELATIONS if f" {one} " in question), None), people


def answer(question: str, kept: str) -> str:
    """The exact answer as far as the kept facts tell; the first town of all where they don't."""
    found = {(fact[2], fact[1]): fact[3] for fact in FACT.finditer(kept)}
    relation, people = asked(question)
    if relation is not None:
        people = [found.get((relation, people[0]), "")]
    towns = [found.get((HOME, person), TOWNS[0]) for person in people]
    return " and ".join(towns)


def what_counts(question: str, text: str) -> str:
    """The sentences of a text that the question needs, as far as the text tells."""
    facts = [Fact(found[2], found[1], found[3]) for found in FACT.finditer(text)]
    relation, people = asked(question)
    leads = [fact for fact in facts if (fact.relation, fact.subject) == (relation, people[0])]
    homes = people if relation is None else [fact.value for fact in leads]
    return spaced(
        [*leads, *(fact for fact in facts if fact.relation == HOME and fact.subject in homes)]
    )


async def fixed_memories(
    play: Play, tasks: Mapping[str, Task], tokenizer: Any, profile: tokendelta.Profile
) -> dict[str, float]:
    """What each of `HABITS` scores. What counts is the most that a memory can do that is
    overwritten section by section.

    Raises:
        PreflightError: an episode was lost, so that a score would not be of the habit alone.
    """
    scores: dict[str, float] = {}
    for habit in HABITS:
        found = []
        for name, task in tasks.items():
            engine = FixedReader(habit, tokenizer)
            policy = Policy(engine=engine, profile=profile, max_context_tokens=4_096)
            rollout = Rollout(task, name, rollout_id=f"{habit}/{name}", group_id=name, seed=0)
            episode = await play(rollout, policy)
            if episode.score is None:
                raise PreflightError(
                    f"baseline of {habit}, {name}: {episode.ending.label}:"
                    f" {episode.ending.error}; nothing was trained"
                )
            found.append(episode.metrics["right"])
        scores[habit] = float(np.mean(found))
    return scores


def below(label: str, prompt: str) -> str:
    """The line under a label of the compact prompt."""
    return prompt.partition(f"\n{label}\n")[2].partition("\n")[0]

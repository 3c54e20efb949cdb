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

from apps.trainers.memagent.laptop.world import HOME, PEOPLE_RELATIONS, TOWNS
from apps.trainers.memagent.task import Task

Habit = Literal["an empty memory", "the first section", "the last section"]
HABITS: Sequence[Habit] = get_args(Habit)
FACT = re.compile(r"The (\w+) of (\w+) is (?:in|called) (\w+)\.")
_PEOPLE = re.compile(r"[A-Z]\w+")
Play = Callable[[Rollout[Task], Policy], Awaitable[Episode]]


class FixedReader:
    """Keeps whole sections by habit and answers exactly from what it keeps. Keeps the engine's
    contract; what it keeps has no limit, since it never goes through the memory's ids."""

    def __init__(self, habit: Habit, tokenizer: Any) -> None:
        self._habit, self._tokenizer = habit, tokenizer
        self._kept: str | None = None

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        text = str(self._tokenizer.decode(prompt_ids.tolist(), skip_special_tokens=False))
        said = "none"
        if "\nSection\n" in text:
            section = below("Section", text)
            if self._habit == "the last section" or self._kept is None:
                self._kept = section
        else:
            kept = "" if self._habit == "an empty memory" else self._kept or ""
            said = answer(below("Problem", text), kept)
        ids = [*self._tokenizer.encode(said, add_special_tokens=False)]
        ids.append(self._tokenizer.eos_token_id)
        return Completion(
            np.array(ids, dtype=np.int32), np.zeros(len(ids), dtype=np.float32), "stop"
        )

    async def release(self, session_id: str) -> None:
        return None

    async def close(self) -> None:
        return None


def answer(question: str, kept: str) -> str:
    """The exact answer as far as the kept facts tell; the first town of all where they don't."""
    found = {(fact[1], fact[2]): fact[3] for fact in FACT.finditer(kept)}
    people = _PEOPLE.findall(question.removeprefix("In"))
    relation = next((one for one in PEOPLE_RELATIONS if f" {one} of " in question), None)
    if relation is not None:
        people = [found.get((relation, people[0]), "")]
    towns = [found.get((HOME, person), TOWNS[0]) for person in people]
    return " and ".join(towns)


async def fixed_memories(
    play: Play, tasks: Mapping[str, Task], tokenizer: Any, profile: tokendelta.Profile
) -> dict[str, float]:
    """What each of `HABITS` scores, and a reader that has the whole text at once.

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

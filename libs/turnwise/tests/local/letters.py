"""A method without tools or users: two turns, and lower-case letters are worth something."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokendelta
from pydantic import Field
from turnwise.conversation import Conversation, Turn
from turnwise.episode import Ending, Episode, Limit
from turnwise.method import Method, MethodOptions, Services
from turnwise.policy import AnyPolicy
from turnwise.rollout import Rollout
from turnwise.rows import Row

EpisodeHook = Callable[[Rollout[str]], None]
TASKS = {
    "train": ("ab", "cd", "ef", "gh"),
    "held-out": ("ij", "kl"),
}


class LetterOptions(MethodOptions):
    letters: str = Field(default="az", min_length=2, max_length=2)
    """Sampled bytes between these two are worth a point."""


class Letters(Method[LetterOptions, str]):
    """Trains letters.

    Attributes:
        opened, closed: How often.
        hook: Called with each rollout; what it raises, the episode does.
    """

    Options = LetterOptions
    name = "letters"
    may_change = frozenset({"letters"})
    opened = closed = 0
    hook: Callable[[Rollout[str]], None] = staticmethod(lambda rollout: None)
    group: Callable[[Sequence[Episode]], Sequence[float | None]] | None = None

    def task(self, row: Row) -> str:
        return str(row.prompt)

    def rows(self, split: str) -> Sequence[Row]:
        return [Row(prompt=name, id=f"task-{name}") for name in TASKS[split]]

    async def open(self, services: Services) -> None:
        type(self).opened += 1

    async def close(self) -> None:
        type(self).closed += 1

    def about(self) -> str:
        return "letter tasks"

    def claim(self, split: str, *, shipped: bool) -> tuple[str, ...]:
        return ("Letters only.",)

    def players(self) -> Mapping[str, str]:
        return {"sandbox": "none", "coder": "rules"}

    async def baselines(
        self, tasks: Mapping[str, str], tokenizer: Any, profile: tokendelta.Profile
    ) -> Mapping[str, float]:
        return {"always a": 1.0, "never a": 0.25}

    def group_scores(self, episodes: Sequence[Episode]) -> Sequence[float | None]:
        return type(self).group(episodes) if type(self).group else super().group_scores(episodes)

    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        low, high = self.options.letters
        good = sampled = 0
        async with Conversation(policy, rollout) as talk:
            type(self).hook(rollout)
            said = rollout.task
            for _ in range(2):
                turn = await talk.ask([{"role": "user", "content": said}])
                if not isinstance(turn, Turn):
                    return talk.episode(turn.ending, 0.0)
                good += sum(low <= letter <= high for letter in turn.text)
                sampled += turn.tokens
                said = "more"
            return talk.episode(Ending.stopped(Limit.TURNS), good / max(sampled, 1))


def letters(hook: EpisodeHook = lambda rollout: None) -> type[Letters]:
    """The method with a hook and counts of its own."""
    own = {"hook": staticmethod(hook), "opened": 0, "closed": 0, "__doc__": Letters.__doc__}
    return type("Letters", (Letters,), own)

"""What fixed routes score on the generated questions: who is asked, whatever the question is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tokendelta
from numpy.typing import NDArray
from turnwise.command import PreflightError
from turnwise.episode import Episode
from turnwise.local.demonstrations import Speaker
from turnwise.policy import Policy
from turnwise.rollout import Rollout

from apps.trainers.toolorchestra.tables import Expert
from apps.trainers.toolorchestra.task import Task

CEILING = "the best of all routes on every question"
CONCURRENCY = 32

Play = Callable[[Rollout[Task], Policy], Awaitable[Episode]]
Route = Sequence[Expert]
Numbers: TypeAlias = NDArray[np.float64]


class FixedLeader(Speaker):
    """Calls the experts of a route, one a turn."""

    def __init__(self, route: Route, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._calls = iter(route)

    def say(self, prompt_ids: NDArray[np.int32]) -> str:
        expert = next(self._calls)
        return f"{expert.tool} {expert.role}"


def routes(task: Task) -> list[Route]:
    """One who answers, from cheap to dear, or a helper and then one who answers."""
    answerers = sorted(task.of("answer"), key=lambda expert: expert.read_price)
    helpers = [*task.of("search"), *task.of("enhance_reasoning")]
    direct = [(one,) for one in answerers]
    return [*direct, *((helper, one) for helper in helpers for one in answerers)]


@dataclass(frozen=True, slots=True)
class Worth:
    """What a fixed way to lead has on average: the score, US dollars, and the share right."""

    score: float
    cost_usd: float
    correct: float


async def fixed_routes(
    play: Play, tasks: Mapping[str, Task], tokenizer: Any, profile: tokendelta.Profile
) -> dict[str, Worth]:
    """What leaders have that always ask one who answers, by his place among the prices, any route
    with equal chance, and the best route of each question, which nobody can know.

    Played through the episode loop with rules for experts, so that everything is deterministic and
    one episode a route is exact.

    Raises:
        PreflightError: an episode was lost, so that a score would not be of the route alone.
    """
    gate = asyncio.Semaphore(CONCURRENCY)

    async def worth(name: str, number: int, route: Route) -> Numbers:
        engine = FixedLeader(route, tokenizer)
        policy = Policy(engine=engine, profile=profile, max_context_tokens=4_096)
        rollout = Rollout(tasks[name], name, rollout_id=f"{number}/{name}", group_id=name, seed=0)
        async with gate:
            episode = await play(rollout, policy)
        if episode.score is None:
            raise PreflightError(
                f"baseline, route {' '.join(one.role for one in route)} of {name}:"
                f" {episode.ending.label}: {episode.ending.error}; nothing was trained"
            )
        numbers = episode.metrics
        return np.array([episode.score, numbers["cost_usd"], numbers["correct"]])

    async def ways(name: str, task: Task) -> Numbers:
        """Of each route of a question."""
        asked = (worth(name, number, route) for number, route in enumerate(routes(task)))
        return np.stack(await asyncio.gather(*asked))

    found = await asyncio.gather(*(ways(*item) for item in tasks.items()))
    # Of each question, what those who answer by themselves have, from cheap to dear.
    direct = [of[: len(task.of("answer"))] for of, task in zip(found, tasks.values(), strict=True)]
    named = {
        "always the dearest expert": [of[-1] for of in direct],
        "always the second dearest": [of[-2:][0] for of in direct],
        "always the second cheapest": [of[:2][-1] for of in direct],
        "always the cheapest expert": [of[0] for of in direct],
        "a random route": [of.mean(axis=0) for of in found],
        CEILING: [of[of[:, 0].argmax()] for of in found],
    }
    return {name: Worth(*map(float, np.mean(values, axis=0))) for name, values in named.items()}

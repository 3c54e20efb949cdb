"""What fixed routes score on the generated questions: who is asked, whatever the question is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

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


async def fixed_routes(
    play: Play, tasks: Mapping[str, Task], tokenizer: Any, profile: tokendelta.Profile
) -> dict[str, float]:
    """What leaders score that always ask the dearest who answers, the cheapest, any route with
    equal chance, and the best route of each question, which nobody can know.

    Played through the episode loop with rules for experts, so that everything is deterministic and
    one episode a route is exact.

    Raises:
        PreflightError: an episode was lost, so that a score would not be of the route alone.
    """
    gate = asyncio.Semaphore(CONCURRENCY)

    async def score(name: str, number: int, route: Route) -> float:
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
        return episode.score

    found: dict[str, list[float]] = {}
    for name, task in tasks.items():
        ways = routes(task)
        scores = await asyncio.gather(*(score(name, *way) for way in enumerate(ways)))
        direct = len(task.of("answer"))
        best, cheapest = scores[direct - 1], scores[0]
        found.setdefault("always the dearest expert", []).append(best)
        found.setdefault("always the cheapest expert", []).append(cheapest)
        found.setdefault("a random route", []).append(float(np.mean(scores)))
        found.setdefault(CEILING, []).append(max(scores))
    return {name: float(np.mean(values)) for name, values in found.items()}

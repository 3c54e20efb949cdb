"""Cases played by the expert through the episode loop, as token arrays."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import tokendelta
from jinja2 import Template
from numpy.typing import NDArray
from taubench import Action
from taubench.prompts import prompt_view
from taubench.users import UserConfig
from turnwise.episode import Episode
from turnwise.local.demonstrations import Demonstrations, Speaker, joined
from turnwise.policy import Policy
from turnwise.rollout import Rollout

from apps.trainers.tau.episode import run_episode
from apps.trainers.tau.options import TauOptions
from apps.trainers.tau.synthetic import Case, CaseEnvironment, CaseUser, make_case
from apps.trainers.tau.tokenizer import CHAT_TEMPLATE

MAX_CONTEXT_TOKENS = 2048
"""The shipped policy's tokenizer stays below 1,024; one that splits numbers into digits may not."""
OPTIONS = TauOptions(prompt="compact", user=UserConfig(strategy="offline"))
_CHUNK = 100


class Expert(Speaker):
    """Says the turns of one case."""

    def __init__(self, turns: tuple[str, ...], tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._turns = iter(turns)

    def say(self, prompt_ids: NDArray[np.int32]) -> str:
        return next(self._turns)


async def play(case: Case, tokenizer: Any, profile: tokendelta.Profile) -> Episode:
    """The case served by its expert.

    Raises:
        RuntimeError: the reward is not 0 with a mistake and 1 without: a bug of the expert.
    """
    engine = Expert(case.turns, tokenizer)
    policy = Policy(engine=engine, profile=profile, max_context_tokens=MAX_CONTEXT_TOKENS)
    name = case.task.id
    episode = await run_episode(
        Rollout(task=case.task, task_id=name, rollout_id=name, group_id=name, seed=0),
        policy,
        OPTIONS,
        make_user=lambda: CaseUser(case),
        make_environment=lambda task: CaseEnvironment(case),
    )
    if episode.score != (case.mistake is None):
        raise RuntimeError(
            f"{name}: mistake {case.mistake!r}, but {episode.ending.label} with score "
            f"{episode.score}: {episode.ending.error or case.turns}"
        )
    return episode


def corpus(seed: int, count: int) -> Iterator[str]:
    """What the policy reads and writes in `count` cases, to learn the tokenizer from."""
    view = prompt_view("compact")
    prompt = Template(CHAT_TEMPLATE).render(
        messages=[{"role": "system", "content": view.system("retail")}],
        tools=view.tools("retail"),
        add_generation_prompt=True,
    )
    for index in range(count):
        yield prompt
        case = make_case(seed, index, mistake_share=0.0)
        yield f"user\n{CaseUser(case).opening()}"
        yield from case.turns
        environment = CaseEnvironment(case)
        for name, kwargs in (
            ("get_order_details", {"order_id": case.task.actions[0].kwargs["order_id"]}),
            (case.task.actions[0].name, case.task.actions[0].kwargs),
        ):
            result = environment.step(Action(name, kwargs))
            yield view.observation(name, result.observation)
        yield case.task.user_id


def record(
    tokenizer: Any, *, seed: int, count: int, mistake_share: float, workers: int = 1
) -> Demonstrations:
    """Plays cases 0 to count - 1 of a seed; the result does not depend on `workers`.

    Raises RuntimeError as `play` does.
    """
    spans = [(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]
    job = partial(_record_span, tokenizer, seed, mistake_share)
    if workers == 1:
        parts = list(map(job, spans))
    else:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            parts = list(pool.map(job, spans))
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Demonstrations(
        ids=np.concatenate([part.ids for part in parts]),
        trained=np.concatenate([part.trained for part in parts]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        flawed=np.concatenate([part.flawed for part in parts]),
    )


def _record_span(
    tokenizer: Any, seed: int, mistake_share: float, span: tuple[int, int]
) -> Demonstrations:
    profile = tokendelta.Profile.from_tokenizer(tokenizer)
    cases = [make_case(seed, index, mistake_share=mistake_share) for index in range(*span)]

    async def play_all() -> list[tokendelta.Sample]:
        return [(await play(case, tokenizer, profile)).segments[0] for case in cases]

    return joined(asyncio.run(play_all()), [case.mistake is not None for case in cases])

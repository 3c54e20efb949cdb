"""Eight episodes at once through slime's hooks, of which one meets a fault.

Afterwards:
1. the victim has ended as the table says, and without a score it has no reward and trains nothing;
2. the seven others have the tokens, log-probs and rewards of an undisturbed run;
3. the ledger balances, and the tracker got the same counts;
4. no task, socket or file is left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from slime.observability import logging_utils  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    generate_and_rm_group,
)
from turnwise.engine.http import HttpPool
from turnwise.slime import close, rollout_log, shared
from turnwise.testing.faults import DONE, Fault, meet, nothing_left_behind
from turnwise.testing.servers import Answer, Call, FakeChat, FakeSGLang

from .contract import make_args, to_train_data

EPISODES = 8
VICTIM = 3
PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class Eight:
    """The episodes of a method.

    Attributes:
        options: `args.turnwise`, given the endpoint's URL and the deadline of every answer.
        rows: Makes the samples.
        policy: Makes what answers as the engine.
        says: Answers as the endpoint.
        victims: Whether a request to the endpoint is the victim's.
    """

    options: Callable[[str, float], Mapping[str, Any]]
    rows: Callable[[], list[Any]]
    policy: Callable[[], Answer]
    says: Callable[[list[dict[str, Any]]], str]
    victims: Callable[[Call], bool]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What slime and its tracker got to see.

    Attributes:
        episodes: The samples of each episode, in the order of their index.
        numbers: What was logged.
        data: The training data of all samples.
        asked: What the endpoint was asked, in order.
    """

    episodes: list[list[Any]]
    numbers: dict[str, float]
    data: dict[str, list[Any]]
    asked: list[Call]


async def play(
    eight: Eight,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    engine: Fault | None = None,
    service: Fault | None = None,
    **changes: Any,
) -> Outcome:
    """Plays the episodes under slime's arguments `changes`; asserts that nothing is left behind."""
    fault = engine or service
    monkeypatch.setattr(shared, "HttpPool", partial(HttpPool, backoff_s=0.001, max_backoff_s=0.02))
    rows = eight.rows()
    for number, row in enumerate(rows):
        row.index, row.group_index, row.session_id = number, 0, f"session-{number}"
    with nothing_left_behind():
        async with FakeSGLang(eight.policy()) as server, FakeChat(eight.says) as endpoint:
            server.misbehave = meet(engine, lambda call: call.session == f"session-{VICTIM}")
            endpoint.misbehave = meet(service, eight.victims)
            args = make_args(
                hf_checkpoint=checkpoint,
                turnwise=dict(
                    eight.options(f"{endpoint.url}/v1", fault.deadline_s if fault else 60.0)
                ),
                **changes,
                sglang_router_port=server.port,
                n_samples_per_prompt=EPISODES,
            )
            made = await generate_and_rm_group(args, rows, PARAMS)
            await close()
        episodes = [one if isinstance(one, list) else [one] for one in made]
        data = to_train_data(args, [made])
        flat = [sample for episode in episodes for sample in episode]
        assert rollout_log(0, args, flat, {}, 1.0) is True
        for _ in range(20):
            # Closed connections finish closing.
            await asyncio.sleep(0)
    return Outcome(episodes, logging_utils.logged[-1], data, endpoint.calls)


def check(fault: Fault, outcome: Outcome, undisturbed: Outcome) -> None:
    """Asserts what the module says."""
    victims = outcome.episodes[VICTIM]
    facts = victims[0].metadata["turnwise"]
    assert facts["ending"] == fault.ends, facts["error"]
    assert fault.error in (facts["error"] or "")
    is_lost = fault.ends != DONE
    if is_lost:
        assert facts["score"] is None
        before = sum(len(samples) for samples in outcome.episodes[:VICTIM])
        for place, sample in enumerate(victims, start=before):
            assert sample.reward is None and sample.remove_sample
            assert sample.status.value == "aborted"
            assert sum(outcome.data["loss_masks"][place]) == 0
            assert outcome.data["rewards"][place] == 0.0
    for number, samples in enumerate(outcome.episodes):
        if number != VICTIM:
            same = undisturbed.episodes[number]
            for name in ("tokens", "rollout_log_probs", "loss_mask", "reward"):
                assert [getattr(one, name) for one in samples] == [getattr(s, name) for s in same]
    numbers = {
        name.removeprefix("rollout/turnwise/"): value for name, value in outcome.numbers.items()
    }
    assert numbers["started"] == EPISODES and numbers["in_flight"] == 0
    assert numbers["finished"] == EPISODES - is_lost
    assert numbers["coverage"] == (EPISODES - is_lost) / EPISODES
    assert numbers[fault.ends.replace(":", "/")] == (1 if is_lost else EPISODES)
    json.dumps(victims[0].metadata)

"""What an engine can do to a rollout, through every dialect: it is the engine's, or nobody sees it.

The table is `turnwise.testing.faults`. Of eight rollouts behind one gateway six meet the fault, one
for each dialect, streamed and not; two others do not.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import numpy as np
import pytest
import tokendelta
from turnwise.engine.http import HttpPool
from turnwise.engine.sglang import SGLangEngine
from turnwise.episode import Ending
from turnwise.gateway import Bounds, Gateway, Record
from turnwise.testing import byte_policy, decode, encode
from turnwise.testing.faults import DONE, ENGINE, ENGINE_FAULTS, Fault, meet
from turnwise.testing.servers import Call, FakeSGLang, Turn

from gateway.client import USER, rollout

PATHS = ("chat/completions", "responses", "messages")
VICTIMS = tuple(f"{path}-{kind}" for path in PATHS for kind in ("plain", "stream"))
OTHERS = ("chat/completions-untouched", "responses-untouched")


async def answer(call: Call) -> Turn:
    """Two turns that every rollout is told alike, however often it asks."""
    turn = decode(call.body["input_ids"]).count("This is turn")
    ids = [*encode(f"This is turn {turn}."), 257]
    return Turn(ids, [-(k + 1) / 64 for k in range(len(ids))])


async def asked(http: aiohttp.ClientSession, url: str, name: str) -> list[tuple[int, Any, bytes]]:
    """Status, headers and body of the answers to a history that goes on with what was said."""
    path, _, kind = name.partition("-")
    history, found = [USER], []
    for turn in range(2):
        body = {"messages": history, "input": history, "max_tokens": 1500}
        async with http.post(f"{url}/v1/{path}", json={**body, "stream": kind == "stream"}) as got:
            found.append((got.status, got.headers, await got.read()))
        echo = {"role": "assistant", "content": f"This is turn {turn}."}
        history = [*history, echo, USER]
    return found


async def through(fault: Fault | None) -> dict[str, tuple[Record, list[tuple[int, Any, bytes]]]]:
    """Every rollout's record and what its client was answered."""
    fault_of = {name: meet(fault, lambda call: True) for name in VICTIMS}
    pool = HttpPool(backoff_s=0.001, max_backoff_s=0.02)
    bounds = Bounds(turn_deadline_s=60.0 if fault is None else fault.deadline_s)
    found = {}
    async with FakeSGLang(answer) as server, Gateway() as gateway, aiohttp.ClientSession() as http:
        engine = SGLangEngine(server.url, pool=pool)
        policy = byte_policy(engine, max_new_tokens=1024)

        async def one(name: str) -> None:
            mine = replace(rollout(), rollout_id=name)
            async with gateway.rollout(policy, mine, bounds) as (url, record):
                found[name] = record, await asked(http, url, name)

        def misbehave(call: Call) -> Any:
            name = call.session.rpartition("/")[0]
            return fault_of[name](call) if name in fault_of else None

        server.misbehave = misbehave
        await asyncio.gather(*map(one, (*VICTIMS, *OTHERS)))
        await engine.close()
        await pool.close()
    return found


def ending(record: Record) -> Ending:
    """As `Harness` ends such a rollout."""
    if record.aborted:
        return Ending.cancelled()
    return Ending.finished() if record.failure is None else Ending.lost(record.failure)


def same(sample: tokendelta.Sample, other: tokendelta.Sample) -> bool:
    return (
        np.array_equal(sample.ids, other.ids)
        and np.array_equal(sample.loss_mask, other.loss_mask)
        and np.array_equal(sample.logprobs, other.logprobs, equal_nan=True)
    )


@pytest.fixture(scope="module")
def undisturbed() -> tokendelta.Sample:
    """What is trained of a rollout that meets no fault, the same through every dialect."""
    found = asyncio.run(through(None))
    samples = [record.samples().samples for record, _ in found.values()]
    assert all(len(one) == 1 and same(one[0], samples[0][0]) for one in samples)
    assert all(ending(record).label == DONE for record, _ in found.values())
    return samples[0][0]


@pytest.mark.parametrize("fault", ENGINE_FAULTS, ids=lambda fault: fault.name)
async def test_an_engines_fault_is_the_engines_through_every_dialect(
    fault: Fault, undisturbed: tokendelta.Sample
) -> None:
    found = await through(fault)
    for name in OTHERS if fault.ends != DONE else (*VICTIMS, *OTHERS):
        record, answers = found[name]
        assert ending(record).label == DONE and [status for status, _, _ in answers] == [200, 200]
        (sample,) = record.samples().samples
        assert same(sample, undisturbed), name
        versions = {1, 2} if name in VICTIMS and "weights" in fault.name else {1}
        assert record.weight_versions == versions
    for name in VICTIMS if fault.ends != DONE else ():
        record, answers = found[name]
        ended = ending(record)
        assert ended.label == fault.ends and fault.error in (ended.error or ""), (name, ended)
        assert [status for status, _, _ in answers[: fault.turn]] == [200] * fault.turn
        for status, headers, data in answers[fault.turn :]:
            assert status == (503 if fault.ends == ENGINE else 410), (name, data)
            assert headers["x-should-retry"] == "false" and json.loads(data)["error"]["message"]
        trained = sum(sample.trained_tokens for sample in record.samples().samples)
        assert trained == fault.turn * len("This is turn 0.\n")

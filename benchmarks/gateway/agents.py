"""A thousand agents at once behind one gateway: is anything lost, and does its memory stay flat?

python -m benchmarks.gateway.agents [AGENTS [TURNS [WAVES]]]

The gateway has this process, the agents have one of their own, so that two cores carry both. An
agent is a loop of tool turns over Chat Completions. A wave is all of them at once, each a rollout
of its own; after each wave every sampled token must be trained, once, in one segment a rollout,
and the process's memory is read.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import tokendelta
from numpy.typing import NDArray
from turnwise.engine import Completion, SamplingParams
from turnwise.gateway import Gateway, Record
from turnwise.policy import Policy
from turnwise.rollout import Rollout
from turnwise.rounds import keep_what_is_loaded
from turnwise.testing import byte_tokenizer, call

SAYS = "I look. " + call("look", at="#W2378156")
RESULT = json.dumps({"order": "#W2378156", "status": "pending", "items": list(range(10))})
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
ENGINE_S = 0.1
"""Of a turn, so that requests wait beside each other."""


class Saying:
    """An engine that says the same, a moment later, and keeps nothing."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = np.array(ids, dtype=np.int32)

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        await asyncio.sleep(ENGINE_S)
        return Completion(self.ids, np.full(len(self.ids), -1.0, np.float32), "stop")

    async def release(self, session_id: str) -> None:
        pass

    async def close(self) -> None:
        pass


async def agent(http: aiohttp.ClientSession, url: str, turns: int) -> None:
    history: list[Any] = [{"role": "user", "content": "Where is my order?"}]
    for _ in range(turns):
        body = {"model": "m", "messages": history, "tools": [TOOL]}
        async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            message = (await answer.json())["choices"][0]["message"]
        called = message["tool_calls"][0]["id"]
        history += [message, {"role": "tool", "tool_call_id": called, "content": RESULT}]


async def agents(urls: list[str], turns: int) -> None:
    """In the process of the agents."""
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        await asyncio.gather(*(agent(http, url, turns) for url in urls))


async def wave(gateway: Gateway, policy: Policy, count: int, turns: int) -> tuple[int, float]:
    """Tokens that were trained, and the most of a second that the loop was late."""
    async with AsyncExitStack() as stack:
        served: list[tuple[str, Record]] = []
        for number in range(count):
            rollout = Rollout(
                task="", task_id="t", rollout_id=f"r{number}", group_id="g", seed=number
            )
            served.append(await stack.enter_async_context(gateway.rollout(policy, rollout)))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.gateway.agents", "--agents", str(turns),
            stdin=asyncio.subprocess.PIPE,
        )  # fmt: skip
        late = asyncio.create_task(lag())
        await process.communicate(json.dumps([url for url, _ in served]).encode())
        late.cancel()
        await asyncio.wait([late])
        assert process.returncode == 0, "an agent got no answer"
        trained = 0
        for _, record in served:
            (sample,) = record.samples().samples
            assert not record.samples().dropped and record.metrics()["turns"] == turns
            trained += sample.trained_tokens
        return trained, LATE.pop()


LATE: list[float] = []


async def lag() -> None:
    """Notes by how much a sleep was late at the most, until it is cancelled."""
    most = 0.0
    try:
        while True:
            asked = time.perf_counter()
            await asyncio.sleep(0.05)
            most = max(most, time.perf_counter() - asked - 0.05)
    finally:
        LATE.append(most)


class Collections:
    """Seconds that collections of garbage stopped the process for since `clear`."""

    def __init__(self) -> None:
        gc.callbacks.append(self._note)
        self.clear()

    def clear(self) -> None:
        self.whole = self.longest = 0.0

    def _note(self, phase: str, told: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            spent = time.perf_counter() - self._began
            self.whole, self.longest = self.whole + spent, max(self.longest, spent)


def memory_mb() -> float:
    """What this process has resident now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def main(count: int, turns: int, waves: int) -> None:
    tokenizer = byte_tokenizer()
    ids = [*tokenizer.encode(SAYS, add_special_tokens=False), tokenizer.eos_token_id]
    policy = Policy(
        engine=Saying(ids),
        profile=tokendelta.Profile.from_tokenizer(tokenizer),
        max_context_tokens=1_000_000,
    )
    collections = Collections()
    async with Gateway() as gateway:
        # As both backends do before they play.
        keep_what_is_loaded()
        for number in range(waves):
            collections.clear()
            began, cpu = time.perf_counter(), time.process_time()
            trained, late = await wave(gateway, policy, count, turns)
            spent, cpu = time.perf_counter() - began, time.process_time() - cpu
            assert trained == count * turns * len(ids), "every sampled token is trained once"
            print(
                f"wave {number + 1}: {count} agents x {turns} turns in {spent:.0f} s, {cpu:.0f} s"
                f" of the gateway's CPU; trained {trained} tokens, all; loop late by"
                f" {late:.2f} s at most, of it {collections.longest:.2f} s for one collection of"
                f" garbage ({collections.whole:.1f} s in all); {memory_mb():.0f} MB after it",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--agents"]:
        asyncio.run(agents(json.load(sys.stdin), int(sys.argv[2])))
    else:
        parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
        for name, default in (("agents", 1000), ("turns", 20), ("waves", 3)):
            parser.add_argument(name, nargs="?", type=int, default=default)
        given = parser.parse_args()
        asyncio.run(main(given.agents, given.turns, given.waves))

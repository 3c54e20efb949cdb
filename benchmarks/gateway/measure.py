"""What the gateway costs: our own CPU a turn, requests a second, memory of a rollout.

python -m benchmarks.gateway.measure

One rollout of 60 tool turns over Chat Completions, with 16 tools, the shipped policy's tokenizer,
and an engine that answers at once with the same sentence and call. The server has a thread of its
own, whose CPU time is what counts: HTTP, JSON, the place in the tree, reading the turn, the answer.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import aiohttp
import tokendelta
from transformers import AutoTokenizer
from turnwise.engine.scripted import ScriptedEngine, reply
from turnwise.gateway import Gateway, Record
from turnwise.policy import Policy
from turnwise.rollout import Rollout
from turnwise.testing import call

FOLDER = Path(__file__).parents[2] / "apps/trainers/tau/policy"
TURNS, ROLLOUTS = 60, 9
SAYS = "I will look that up for you. " + call("get_order_details", order_id="#W2378156")
RESULT = json.dumps({"order_id": "#W2378156", "status": "pending", "items": list(range(40))})
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"get_order_details{i or ''}",
            "description": "Looks an order up. " * 5,
            "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}},
        },
    }
    for i in range(16)
]


class Served:
    """A gateway in a thread of its own."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.gateway = Gateway()
        self.call(self.gateway.__aenter__())

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def cpu_s(self) -> float:
        return time.thread_time()

    def rollout(self, number: int) -> Any:
        made = Rollout(task="", task_id="t", rollout_id=f"r{number}", group_id="g", seed=number)
        return self.gateway.rollout(self._policy, made)


async def converse(served: Served, url: str) -> list[float]:
    """The server's CPU seconds of each turn."""
    history: list[Any] = [
        {"role": "system", "content": "You help the customers of a shop. " * 100},
        {"role": "user", "content": "Where is my order?"},
    ]
    spent = []
    async with aiohttp.ClientSession() as http:
        for _ in range(TURNS):
            before = served.call(served.cpu_s())
            body = {"model": "m", "messages": history, "tools": TOOLS}
            async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
                message = (await answer.json())["choices"][0]["message"]
            spent.append(served.call(served.cpu_s()) - before)
            called = message["tool_calls"][0]["id"]
            history += [message, {"role": "tool", "tool_call_id": called, "content": RESULT}]
    return spent


def check(record: Record, ids: list[int]) -> int:
    """Sampled tokens; every one of them must be trained, in one segment."""
    (sample,) = record.samples().samples
    assert sample.trained_tokens == len(ids) * TURNS and not record.samples().dropped
    return sample.trained_tokens


def main() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(FOLDER)
    ids = [*tokenizer.encode(SAYS, add_special_tokens=False), tokenizer.eos_token_id]
    policy = Policy(
        engine=ScriptedEngine(lambda prompt: reply(ids)),
        profile=tokendelta.Profile.from_tokenizer(tokenizer),
        max_context_tokens=1_000_000,
    )
    served = Served(policy)
    rows = []
    for number in range(ROLLOUTS):
        block = served.rollout(number)
        url, record = served.call(block.__aenter__())
        rows.append(asyncio.run(converse(served, url)))
        trained = check(record, ids)
        policy.engine.calls.clear()  # type: ignore[attr-defined]
        served.call(block.__aexit__(None, None, None))
    at = [statistics.median(row[turn] for row in rows) * 1e3 for turn in range(TURNS)]
    whole = statistics.median(sum(row) for row in rows)
    print(f"own CPU a turn, median of {ROLLOUTS}: turn 5 {at[4]:.2f} ms, 30 {at[29]:.2f} ms,"
          f" 60 {at[59]:.2f} ms; first {at[0]:.2f} ms")  # fmt: skip
    print(f"60 turns {whole * 1e3:.0f} ms: {TURNS / whole:.0f} requests a second of CPU")
    print(f"trained {trained} of {len(ids) * TURNS} sampled tokens, in one segment")
    tracemalloc.start()
    block = served.rollout(ROLLOUTS)
    url, record = served.call(block.__aenter__())
    before = tracemalloc.get_traced_memory()[0]
    asyncio.run(converse(served, url))
    policy.engine.calls.clear()  # type: ignore[attr-defined]
    held = tracemalloc.get_traced_memory()[0] - before
    print(f"memory of a rollout {held / 1e3:.0f} kB, of it ids and log-probs"
          f" {record.tree.nbytes / 1e3:.0f} kB")  # fmt: skip


if __name__ == "__main__":
    main()

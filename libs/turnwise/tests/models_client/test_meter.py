"""What an episode's models used is its own, whatever else is under way."""

from __future__ import annotations

import asyncio

from turnwise.episode import Boundary
from turnwise.models.client import ChatClient
from turnwise.models.config import ChatConfig
from turnwise.models.meter import count, metering
from turnwise.testing.servers import FakeChat

HELLO = [{"role": "user", "content": "Hello?"}]


async def test_episodes_that_go_on_together_are_counted_apart() -> None:
    async def episode(requests: int) -> dict[str, float]:
        with metering() as used:
            for _ in range(requests):
                await client.complete(HELLO)
            return used.metrics()

    async with FakeChat(lambda messages: "Yes.") as server:
        config = ChatConfig(base_url=f"{server.url}/v1", model="m", read_price=1, write_price=2)
        client = ChatClient(config, boundary=Boundary.JUDGE)
        found = await asyncio.gather(*map(episode, (1, 3, 0)))
        await client.complete(HELLO)
        total = client.spend
        await client.close()
    assert [used.get("judge_requests", 0) for used in found] == [1, 3, 0]
    assert found[2] == {}
    for name in ("read_tokens", "written_tokens", "usd"):
        assert found[1][f"judge_{name}"] == 3 * found[0][f"judge_{name}"]
        assert getattr(total, name) == 5 * found[0][f"judge_{name}"] > 0


async def test_a_request_of_a_task_that_the_episode_started_counts() -> None:
    async def ask() -> None:
        await asyncio.sleep(0)
        count(Boundary.USER, 10, 5, 0.25)

    with metering() as used:
        await asyncio.ensure_future(ask())
    count(Boundary.USER, 1, 1, 1.0)
    assert used.metrics() == {
        "user_requests": 1.0, "user_read_tokens": 10.0, "user_written_tokens": 5.0, "user_usd": 0.25
    }  # fmt: skip

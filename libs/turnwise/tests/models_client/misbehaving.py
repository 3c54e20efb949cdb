"""A chat client, an endpoint that misbehaves, and what it may answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from turnwise.models.client import ChatClient
from turnwise.models.config import ChatConfig
from turnwise.testing.servers import FakeChat, Misbehaviour, edit

KEY = "sk-4f9c2d7e81a6b3"
HELLO = [{"role": "user", "content": "Hello?"}]


@asynccontextmanager
async def endpoint(
    *bad: Misbehaviour | None, words: str = "I want to cancel.", **options: Any
) -> AsyncIterator[tuple[ChatClient, FakeChat]]:
    """A client and an endpoint whose n-th answer is the n-th misbehaviour, the right one later."""
    async with FakeChat(lambda messages: words) as server:
        server.misbehave = lambda call: bad[call.number] if call.number < len(bad) else None
        settings = {"backoff_s": 0.01, "deadline_s": 20.0, **options}
        config = ChatConfig(base_url=f"{server.url}/v1", model="m", key_env="TEST_KEY", **settings)
        client = ChatClient(config, environ={"TEST_KEY": KEY})
        before = asyncio.all_tasks()
        try:
            yield client, server
        finally:
            assert client.limiter.running == client.limiter.waiting == 0
            assert client.spend.pledged_usd == 0
            await client.close()
            assert not [t for t in asyncio.all_tasks() - before if "turnwise" in repr(t)]


def always(bad: Misbehaviour) -> Sequence[Misbehaviour]:
    return [bad] * 50


def content(value: Any) -> Misbehaviour:
    return edit(lambda answer: answer["choices"][0]["message"].update(content=value))


TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}

"""A client of the gateway in tests, and a policy that says what it is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from turnwise.engine.scripted import Reply
from turnwise.gateway import Bounds, Gateway, Record
from turnwise.rollout import Rollout
from turnwise.testing import ScriptedEngine, byte_policy, decode, say

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        },
    }
]
USER = {"role": "user", "content": "hello"}


def rollout(seed: int = 7) -> Rollout[str]:
    return Rollout(task="t", task_id="task", rollout_id="r0", group_id="g", seed=seed)


class Client:
    """Speaks to one rollout.

    Attributes:
        url: Of the rollout, without `/v1`.
        record: Its record.
        engine: What it is sampled by.
    """

    def __init__(
        self, http: aiohttp.ClientSession, url: str, record: Record, engine: ScriptedEngine
    ) -> None:
        self.http, self.url, self.record, self.engine = http, url, record, engine

    async def post(
        self, path: str, body: Any, *, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(f"{self.url}/v1/{path}", data=data, headers=headers) as answer:
            return answer.status, dict(answer.headers), await answer.read()

    async def chat(self, messages: Any, **fields: Any) -> dict[str, Any]:
        """The message that the policy answers with."""
        body = {"model": "m", "messages": messages, **fields}
        status, _, data = await self.post("chat/completions", body)
        assert status == 200, data
        message: dict[str, Any] = json.loads(data)["choices"][0]["message"]
        return message


@asynccontextmanager
async def serving(
    *script: str | Reply | Callable[[Any], Reply],
    bounds: Bounds | None = None,
    limits: dict[str, int] | None = None,
    **options: Any,
) -> AsyncIterator[Client]:
    """A gateway with one rollout, whose policy says the script."""
    if len(script) == 1 and callable(script[0]):
        engine = ScriptedEngine(script[0])
    else:
        replies = [say(one) if isinstance(one, str) else one for one in script]
        engine = ScriptedEngine(replies)  # type: ignore[arg-type]
    policy = byte_policy(engine, **(limits or {}))
    async with (
        Gateway(**options) as gateway,
        gateway.rollout(policy, rollout(), bounds) as (url, record),
        aiohttp.ClientSession() as http,
    ):
        yield Client(http, url, record, engine)


def events(data: bytes) -> list[Any]:
    """The data of server-sent events; the end mark of Chat Completions as it is."""
    lines = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def trained(client: Client) -> list[str]:
    """The text that each segment trains."""
    return [
        decode(sample.ids[sample.prompt_length :][sample.loss_mask == 1])
        for sample in client.record.samples().samples
    ]

"""tau with a user behind an endpoint, asked with or without giving way."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from taubench.task import STOP, Task
from turnwise.engine.http import HttpPool
from turnwise.users import UserReply

from apps.trainers.tau.method import TauMethod
from apps.trainers.tau.options import TauOptions

TURNS = 4
"""Sampled turns of an episode; each is a message to the user, who leaves at the last."""
USERS = HttpPool()


class MeasuredOptions(TauOptions):
    """tau's, and where the user is."""

    url: str
    """Of the user's server."""
    blocking: bool
    """Ask inside of the coroutine without giving way."""


class MeasuredTau(TauMethod):
    """tau, whose users are `EndpointUser` or `BlockingUser`."""

    Options = MeasuredOptions

    def __init__(self, options: MeasuredOptions) -> None:
        user = BlockingUser if options.blocking else EndpointUser
        super().__init__(options, make_user=lambda: user(options.url))


class EndpointUser:
    """Asks its endpoint as an asynchronous environment does."""

    name = "endpoint"

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._messages: list[dict[str, str]] = []

    async def reset(self, task: Task) -> str:
        self._messages = [{"role": "system", "content": task.instruction}]
        return await self._next()

    async def reply(self, agent_text: object) -> UserReply:
        self._messages.append({"role": "user", "content": str(agent_text)})
        text = await self._next()
        return UserReply(text, done=STOP in text)

    async def _next(self) -> str:
        answer = await self._ask({"model": "user", "messages": self._messages})
        text: str = answer["choices"][0]["message"]["content"]
        self._messages.append({"role": "assistant", "content": text})
        return text

    async def _ask(self, body: dict[str, Any]) -> Any:
        return await USERS.post(self._url, body)


class BlockingUser(EndpointUser):
    """Asks its endpoint without giving way, as a synchronous environment does."""

    async def _ask(self, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(self._url, json.dumps(body).encode())
        with urllib.request.urlopen(request) as response:
            return json.load(response)

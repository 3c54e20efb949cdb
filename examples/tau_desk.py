"""The other side of a tau-bench task, for agents that are written with a library of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taubench import RESPOND, Action, Environment, Task, to_turn
from taubench.prompts import prompt_view
from taubench.users import compact_user

VIEW = prompt_view("compact")


class Desk:
    """A customer and the shop's tools.

    Attributes:
        instructions: For the agent.
        tools: Function schemas: `name`, `description` and `parameters`.
        over: The customer hung up, or was handed on.
        reward: The environment's, once it is over.
    """

    def __init__(self, task: Task) -> None:
        self._task, self._environment, self._user = task, Environment(task), compact_user()
        self.instructions = VIEW.system(task.domain)
        self.tools = [tool["function"] for tool in VIEW.tools(task.domain)]
        self.over, self.reward = False, 0.0

    async def greeting(self) -> str:
        """The customer's first words."""
        return await self._user.reset(self._task)

    def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """What a tool answers."""
        if self.over:
            return ""
        (action,) = to_turn("", [(name, arguments)]).actions
        result = self._environment.step(action)
        self.over, self.reward = result.done, result.reward
        return VIEW.observation(result.source, result.observation)

    async def say(self, text: str) -> str:
        """What the customer answers."""
        assert self._environment.step(Action(RESPOND, {"content": text})).awaits_user
        reply = await self._user.reply(text)
        result = self._environment.hear(reply.text, reply.done)
        self.over, self.reward = result.done, result.reward
        return result.observation

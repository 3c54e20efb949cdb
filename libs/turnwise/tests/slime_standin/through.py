"""The errands by an agent behind the gateway: `{"method": "slime_standin.through:Through"}`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import aiohttp
from turnwise.conversation import ToolCall
from turnwise.gateway.method import Harness, HarnessOptions
from turnwise.rows import Row

from slime_standin.errands import QUESTION, TOOLS, code, opening, tool_result


class Through(Harness[HarnessOptions, int]):
    """Speaks Chat Completions; every other parcel takes a request of its own beside the history.

    Attributes:
        urls: The base URLs that its agents were given.
    """

    urls: ClassVar[list[str]] = []

    def task(self, row: Row) -> int:
        return int(str(row.prompt))

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return TOOLS

    async def agent(self, base_url: str, task: int) -> float:
        self.urls.append(base_url)
        async with aiohttp.ClientSession() as http:

            async def ask(messages: list[Any], **more: Any) -> Any:
                body = {"model": "policy", "messages": messages, **more}
                async with http.post(f"{base_url}/v1/chat/completions", json=body) as answer:
                    answer.raise_for_status()
                    return (await answer.json())["choices"][0]["message"]

            if task % 2:
                await ask([{"role": "user", "content": f"A title for parcel {task}."}])
            history: list[Any] = [{"role": "system", "content": "Serve."}]
            history.append({"role": "user", "content": opening(task)})
            while True:
                message = await ask(history, tools=TOOLS)
                history.append(message)
                for call in message.get("tool_calls") or ():
                    made = ToolCall(
                        call["function"]["name"], json.loads(call["function"]["arguments"])
                    )
                    history.append({**tool_result(made), "tool_call_id": call["id"]})
                if not message.get("tool_calls"):
                    if message["content"] != QUESTION:
                        return float(str(code(task)) in message["content"])
                    history.append({"role": "user", "content": "Yes, please."})

    def reward(self, task: int, result: float) -> float:
        return result

"""An agent that knows nothing of Turnwise, trained through the gateway on tasks of tau-bench.

`serve` below is what one writes for any provider: a loop over Chat Completions with tools, and the
whole history in each request. It is given another base URL, and that is all.

./pants run libs/turnwise:train -- --method examples.tau_gateway:TauGateway
"""

from pathlib import Path
from typing import Any

import aiohttp
from taubench import Environment, Task, load_tasks, to_turn
from taubench.prompts import prompt_view
from taubench.splits import family_splits
from taubench.users import compact_user
from turnwise import Row
from turnwise.gateway.method import Harness, HarnessOptions

VIEW = prompt_view("compact")


async def serve(base_url: str, task: Task) -> float:
    """Serves the customer of a task until they hang up; returns the environment's reward."""
    environment, user = Environment(task), compact_user()
    tools = VIEW.tools(task.domain)
    history: list[dict[str, Any]] = [
        {"role": "system", "content": VIEW.system(task.domain)},
        {"role": "user", "content": await user.reset(task)},
    ]
    async with aiohttp.ClientSession() as http:
        while True:
            body = {"model": "policy", "messages": history, "tools": tools}
            async with http.post(f"{base_url}/v1/chat/completions", json=body) as response:
                response.raise_for_status()
                choice = (await response.json())["choices"][0]
            if choice["finish_reason"] == "length":
                raise RuntimeError("the answer was cut")
            message = choice["message"]
            history.append(message)
            calls = message.get("tool_calls") or []
            asked = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
            for action in to_turn(message["content"], asked).actions:
                result = environment.step(action)
                if result.awaits_user:
                    reply = await user.reply(action.kwargs["content"])
                    result = environment.hear(reply.text, reply.done)
                if result.done:
                    return result.reward
                answer = {"role": "user", "content": result.observation}
                if result.source != "user":
                    shown = VIEW.observation(result.source, result.observation)
                    answer = {"role": "tool", "tool_call_id": calls[0]["id"], "content": shown}
                history.append(answer)


class TauGateway(Harness[HarnessOptions, Task]):
    """The agent as a method: its tasks, and its reward."""

    shipped = Path(__file__).parents[1] / "apps/trainers/tau/policy"
    preset = Path(__file__).with_suffix(".toml")

    def rows(self, split: str) -> list[Row]:
        family = family_splits()
        tasks = {"train": family.train, "held-out": family.held_out}.get(split)
        if tasks is None:
            return list(super().rows(split))
        return [Row(prompt=str(task.index), id=task.id) for task in tasks]

    def task(self, row: Row) -> Task:
        return load_tasks("retail", "train")[int(str(row.prompt))]

    def tools(self) -> list[dict[str, Any]]:
        return VIEW.tools("retail")

    async def agent(self, base_url: str, task: Task) -> float:
        return await serve(base_url, task)

    def reward(self, task: Task, result: float) -> float:
        return result

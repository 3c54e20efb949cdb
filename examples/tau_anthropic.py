r"""An agent of Anthropic's SDK, trained as it is through the gateway on tasks of tau-bench.

`serve` is the loop that the SDK's documentation teaches: create a message, run the tools that it
uses, send their results, until it uses none.

Needs the package anthropic, which `./pants run` has not (docs/gateway.md):

./pants package libs/turnwise:train-pex
pip install --no-deps --target dist/sdks -r third_party/python/clients.lock
PEX_EXTRA_SYS_PATH=$PWD/dist/sdks python dist/turnwise/train.pex \
    --method examples.tau_anthropic:TauAnthropic
"""

from pathlib import Path
from typing import Any

import anthropic  # type: ignore[import-not-found]  # pants: no-infer-dep
from taubench import Task

from examples.tau_desk import Desk
from examples.tau_gateway import TauGateway


async def serve(base_url: str, task: Task) -> float:
    """Serves the customer of a task until they hang up; returns the environment's reward."""
    desk = Desk(task)
    tools: list[Any] = [
        {"name": function["name"], "input_schema": function["parameters"]}
        for function in desk.tools
    ]
    messages: list[Any] = [{"role": "user", "content": await desk.greeting()}]
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none") as client:
        while not desk.over:
            answer = await client.messages.create(
                model="policy",
                max_tokens=1024,
                system=desk.instructions,
                tools=tools,
                messages=messages,
            )
            messages.append({"role": "assistant", "content": answer.content})
            if answer.stop_reason == "tool_use":
                results = [
                    {
                        "type": "tool_result",
                        "tool_use_id": block.id,
                        "content": desk.call(block.name, block.input),
                    }
                    for block in answer.content
                    if block.type == "tool_use"
                ]
                messages.append({"role": "user", "content": results})
            else:
                text = "".join(block.text for block in answer.content if block.type == "text")
                messages.append({"role": "user", "content": await desk.say(text)})
    return desk.reward


class TauAnthropic(TauGateway):
    """The agent as a method."""

    preset = Path(__file__).with_suffix(".toml")

    async def agent(self, base_url: str, task: Task) -> float:
        return await serve(base_url, task)

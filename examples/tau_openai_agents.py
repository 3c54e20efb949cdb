r"""An agent of the OpenAI Agents SDK, trained as it is through the gateway on tasks of tau-bench.

`serve` is what the SDK's documentation teaches for another provider: a client with a base URL, a
model, an agent with tools, and a run for each message.

Needs the packages openai and openai-agents, which `./pants run` has not (docs/gateway.md):

./pants package libs/turnwise:train-pex
pip install --no-deps --target dist/sdks -r third_party/python/clients.lock
PEX_EXTRA_SYS_PATH=$PWD/dist/sdks python dist/turnwise/train.pex \
    --method examples.tau_openai_agents:TauAgents
"""

from pathlib import Path
from typing import Any

import agents  # type: ignore[import-not-found]  # pants: no-infer-dep
import openai  # type: ignore[import-not-found]  # pants: no-infer-dep
from taubench import Task

from examples.tau_desk import Desk
from examples.tau_gateway import TauGateway

agents.set_tracing_disabled(True)


def tool_of(desk: Desk, function: dict[str, Any]) -> agents.FunctionTool:
    async def invoke(context: agents.RunContextWrapper[Any], arguments: str) -> str:
        return desk.call(function["name"], arguments)

    return agents.FunctionTool(
        name=function["name"],
        description=function.get("description", ""),
        params_json_schema=function["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


async def serve(base_url: str, task: Task) -> float:
    """Serves the customer of a task until they hang up; returns the environment's reward."""
    desk = Desk(task)

    def until_over(context: Any, results: Any) -> agents.ToolsToFinalOutputResult:
        return agents.ToolsToFinalOutputResult(is_final_output=desk.over, final_output="")

    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none") as client:
        agent = agents.Agent(
            name="Shop",
            instructions=desk.instructions,
            tools=[tool_of(desk, function) for function in desk.tools],
            model=agents.OpenAIResponsesModel(model="policy", openai_client=client),
            tool_use_behavior=until_over,
        )
        history: list[Any] = [{"role": "user", "content": await desk.greeting()}]
        while not desk.over:
            try:
                result = await agents.Runner.run(agent, history)
            except agents.ModelBehaviorError:
                return 0.0  # It called a tool that there is not.
            history = result.to_input_list()
            if not desk.over:
                reply = await desk.say(str(result.final_output))
                history.append({"role": "user", "content": reply})
    return desk.reward


class TauAgents(TauGateway):
    """The agent as a method."""

    preset = Path(__file__).with_suffix(".toml")

    async def agent(self, base_url: str, task: Task) -> float:
        return await serve(base_url, task)

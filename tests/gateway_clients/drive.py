"""Agents written with other libraries, as their documentation teaches, asked at a given address.

python drive.py < jobs.json       # with the libraries on its path and nothing of ours

A job is an object with `name`, `client` (a function below), `stream` and `url`, without `/v1`. For
each one a line of JSON: `name`, `said` (the agent's last words) and `called` (the arguments of each
call of its tool, in order), or `error`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

SYSTEM = "You look after a meadow."
TASK = "What grows here?"
MODEL = "policy"
SCHEMA = {
    "type": "object",
    "properties": {"at": {"type": "string"}, "times": {"type": "integer"}},
    "required": ["at", "times"],
}
Tool = Callable[[str, int], str]


def _call(tool: Tool, arguments: str | dict[str, Any]) -> str:
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    return tool(given["at"], given["times"])


async def openai_chat(url: str, stream: bool, look: Tool) -> str:
    from openai import AsyncOpenAI

    function = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
    tools: Any = [{"type": "function", "function": function}]
    history: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": TASK},
    ]
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        while True:
            asked: dict[str, Any] = {"model": MODEL, "messages": history, "tools": tools}
            if stream:
                async with client.chat.completions.stream(**asked) as events:
                    message = (await events.get_final_completion()).choices[0].message
            else:
                message = (await client.chat.completions.create(**asked)).choices[0].message
            said = message.model_dump(exclude_none=True, exclude={"parsed"})
            history.append(said)
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                found = _call(look, call.function.arguments)
                history.append({"role": "tool", "tool_call_id": call.id, "content": found})


async def openai_responses(url: str, stream: bool, look: Tool) -> str:
    from openai import AsyncOpenAI

    tools: Any = [
        {"type": "function", "name": "look", "description": "Looks.", "parameters": SCHEMA}
    ]
    history: list[Any] = [{"role": "user", "content": TASK}]
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        while True:
            asked: dict[str, Any] = {
                "model": MODEL, "instructions": SYSTEM, "input": history, "tools": tools,
            }  # fmt: skip
            if stream:
                async with client.responses.stream(**asked) as events:
                    answer: Any = await events.get_final_response()
            else:
                answer = await client.responses.create(**asked)
            leave = {"parsed", "parsed_arguments"}
            history += [one.model_dump(exclude_none=True, exclude=leave) for one in answer.output]
            calls = [one for one in answer.output if one.type == "function_call"]
            if not calls:
                return str(answer.output_text)
            for call in calls:
                found = _call(look, call.arguments)
                result = {"type": "function_call_output", "call_id": call.call_id, "output": found}
                history.append(result)


async def anthropic_messages(url: str, stream: bool, look: Tool) -> str:
    from anthropic import AsyncAnthropic

    tools: Any = [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}]
    history: list[Any] = [{"role": "user", "content": TASK}]
    async with AsyncAnthropic(base_url=url, api_key="none") as client:
        while True:
            asked: dict[str, Any] = {
                "model": MODEL, "system": SYSTEM, "messages": history, "tools": tools,
                "max_tokens": 1000,
            }  # fmt: skip
            if stream:
                async with client.messages.stream(**asked) as events:
                    answer: Any = await events.get_final_message()
            else:
                answer = await client.messages.create(**asked)
            history.append({"role": "assistant", "content": answer.content})
            calls = [one for one in answer.content if one.type == "tool_use"]
            if not calls:
                return "".join(one.text for one in answer.content if one.type == "text")
            results = [
                {"type": "tool_result", "tool_use_id": one.id, "content": _call(look, one.input)}
                for one in calls
            ]
            history.append({"role": "user", "content": results})


async def _agents(url: str, stream: bool, look: Tool, api: str, scout: bool = False) -> str:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    made = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}[api]

    async def looks(at: str, times: int) -> str:
        """Looks."""
        return look(at, times)

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model: Any = made(MODEL, client)
        own: Any = function_tool(looks, name_override="look")
        if scout:
            other = Agent(name="scout", instructions="You look.", model=model, tools=[own])
            own = other.as_tool("look", "Sends a scout.")
        agent = Agent(name="keeper", instructions=SYSTEM, model=model, tools=[own])
        if not stream:
            return str((await Runner.run(agent, TASK)).final_output)
        run = Runner.run_streamed(agent, TASK)
        async for _ in run.stream_events():
            pass
        return str(run.final_output)


async def agents_chat(url: str, stream: bool, look: Tool) -> str:
    return await _agents(url, stream, look, "chat")


async def agents_responses(url: str, stream: bool, look: Tool) -> str:
    return await _agents(url, stream, look, "responses")


async def agents_scout(url: str, stream: bool, look: Tool) -> str:
    """An agent that is a tool of another."""
    return await _agents(url, stream, look, "responses", scout=True)


async def langgraph(url: str, stream: bool, look: Tool) -> str:
    import warnings

    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    warnings.simplefilter("ignore")

    @tool("look")
    async def looks(at: str, times: int) -> str:
        """Looks."""
        return look(at, times)

    model = ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none", streaming=stream)
    agent = create_react_agent(model, [looks], prompt=SYSTEM)
    asked: Any = {"messages": [{"role": "user", "content": TASK}]}
    if not stream:
        return str((await agent.ainvoke(asked))["messages"][-1].content)
    last: dict[str, str] = {}
    async for chunk, _ in agent.astream(asked, stream_mode="messages"):
        if type(chunk).__name__ == "AIMessageChunk":
            last[chunk.id] = last.pop(chunk.id, "") + chunk.content
    return [*last.values()][-1]


async def _pydantic_ai(model: Any, stream: bool, look: Tool) -> str:
    from pydantic_ai import Agent

    agent = Agent(model, instructions=SYSTEM)

    @agent.tool_plain(name="look")
    async def looks(at: str, times: int) -> str:
        """Looks."""
        return look(at, times)

    async def follow(context: Any, events: Any) -> None:
        async for _ in events:
            pass

    result = await agent.run(TASK, event_stream_handler=follow if stream else None)
    return str(result.output)


async def pydantic_ai_chat(url: str, stream: bool, look: Tool) -> str:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    return await _pydantic_ai(OpenAIChatModel(MODEL, provider=provider), stream, look)


async def pydantic_ai_messages(url: str, stream: bool, look: Tool) -> str:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(base_url=url, api_key="none")
    return await _pydantic_ai(AnthropicModel(MODEL, provider=provider), stream, look)


async def smolagents(url: str, stream: bool, look: Tool) -> str:
    from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def looks(at: str, times: int) -> str:
        """Looks.

        Args:
            at: The place.
            times: How often.
        """
        return look(at, times)

    looks.name = "look"
    model = OpenAIServerModel(MODEL, api_base=f"{url}/v1", api_key="none")
    agent = ToolCallingAgent(
        tools=[looks], model=model, stream_outputs=stream, verbosity_level=LogLevel.OFF,
        max_tool_threads=1,
    )  # fmt: skip
    return str(await asyncio.to_thread(agent.run, TASK))


async def smolagents_code(url: str, stream: bool, look: Tool) -> str:
    """An agent that writes code in place of calls."""
    from smolagents import CodeAgent, LogLevel, OpenAIServerModel, tool

    @tool
    def looks(at: str, times: int) -> str:
        """Looks.

        Args:
            at: The place.
            times: How often.
        """
        return look(at, times)

    looks.name = "look"
    model = OpenAIServerModel(MODEL, api_base=f"{url}/v1", api_key="none")
    agent = CodeAgent(
        tools=[looks], model=model, stream_outputs=stream, verbosity_level=LogLevel.OFF
    )
    return str(await asyncio.to_thread(agent.run, TASK))


CLIENTS = (
    openai_chat, openai_responses, anthropic_messages, agents_chat, agents_responses, agents_scout,
    langgraph, pydantic_ai_chat, pydantic_ai_messages, smolagents,
    smolagents_code,
)  # fmt: skip


async def run(job: dict[str, Any]) -> dict[str, Any]:
    """One job's outcome; a failure is one."""
    called: list[Any] = []

    def look(at: str, times: int) -> str:
        called.append({"at": at, "times": times})
        return f"grass at {at}"

    client = {one.__name__: one for one in CLIENTS}[job["client"]]
    try:
        said = await asyncio.wait_for(client(job["url"], job["stream"], look), job["deadline_s"])
    except Exception:
        return {"name": job["name"], "called": called, "error": traceback.format_exc()}
    return {"name": job["name"], "called": called, "said": said}


async def main() -> None:
    # Some of the libraries write to the standard output.
    out, sys.stdout = sys.stdout, sys.stderr
    for job in json.load(sys.stdin):
        print(json.dumps(await run(job)), file=out, flush=True)


if __name__ == "__main__":
    asyncio.run(main())

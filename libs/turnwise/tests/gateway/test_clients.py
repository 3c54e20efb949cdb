"""The real clients, where they are installed, against a gateway on this machine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from turnwise.testing import call, decode, fail

from gateway.client import TOOLS, USER, Client, serving

TEXT = "I look." + call("look", at="a") + call("look", at="b")
FUNCTION: Any = TOOLS[0]["function"]
BOTH = pytest.mark.parametrize("stream", [False, True])


def all_trained(client: Client, turns: int) -> None:
    """One segment that trains every turn."""
    (sample,) = client.record.samples().samples
    trained = decode(sample.ids[sample.prompt_length :][sample.loss_mask == 1])
    assert trained == (TEXT + "<|im_end|>") * (turns - 1) + "Done.<|im_end|>"
    assert client.record.samples().dropped == ()
    assert not any(name.startswith("ignored/") for name in client.record.counts)


@BOTH
async def test_openai_chat(stream: bool) -> None:
    openai = pytest.importorskip("openai")
    async with serving(TEXT, TEXT, "Done.") as client:
        sdk = openai.AsyncOpenAI(base_url=f"{client.url}/v1", api_key="x")
        history: list[Any] = [USER]
        for _ in range(3):
            if stream:
                strict = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
                async with sdk.chat.completions.stream(
                    model="m", messages=history, tools=strict
                ) as answer:
                    message = (await answer.get_final_completion()).choices[0].message
            else:
                answer = await sdk.chat.completions.create(model="m", messages=history, tools=TOOLS)
                message = answer.choices[0].message
            said = message.model_dump(exclude_none=True)
            said.pop("parsed", None)
            history.append(said)
            history += [
                {"role": "tool", "tool_call_id": one.id, "content": json.loads(
                    one.function.arguments)["at"]}
                for one in message.tool_calls or ()
            ]  # fmt: skip
        assert message.content == "Done."
        all_trained(client, 3)
        await sdk.close()


@BOTH
async def test_openai_responses(stream: bool) -> None:
    openai = pytest.importorskip("openai")
    async with serving(TEXT, TEXT, "Done.") as client:
        sdk = openai.AsyncOpenAI(base_url=f"{client.url}/v1", api_key="x")
        tools, history = [{"type": "function", **FUNCTION}], [USER]
        for _ in range(3):
            asked: dict[str, Any] = {"model": "m", "input": history, "tools": tools}
            if stream:
                async with sdk.responses.stream(**asked) as events:
                    answer = await events.get_final_response()
            else:
                answer = await sdk.responses.create(**asked)
            for item in answer.output:
                history.append(
                    item.model_dump(exclude_none=True, exclude={"parsed", "parsed_arguments"})
                )
            history += [
                {"type": "function_call_output", "call_id": one.call_id, "output": "grass"}
                for one in answer.output
                if one.type == "function_call"
            ]
        assert answer.output_text == "Done." and answer.status == "completed"
        all_trained(client, 3)
        await sdk.close()


@BOTH
async def test_anthropic_messages(stream: bool) -> None:
    anthropic = pytest.importorskip("anthropic")
    async with serving(TEXT, TEXT, "Done.") as client:
        sdk = anthropic.AsyncAnthropic(base_url=client.url, api_key="x")
        tools = [{"name": "look", "input_schema": FUNCTION["parameters"]}]
        history: list[Any] = [USER]
        for _ in range(3):
            asked: dict[str, Any] = {
                "model": "m", "messages": history, "tools": tools, "max_tokens": 999,
            }  # fmt: skip
            if stream:
                async with sdk.messages.stream(**asked) as events:
                    answer = await events.get_final_message()
            else:
                answer = await sdk.messages.create(**asked)
            history.append({"role": "assistant", "content": answer.content})
            results = [
                {"type": "tool_result", "tool_use_id": one.id, "content": one.input["at"]}
                for one in answer.content
                if one.type == "tool_use"
            ]
            history.append({"role": "user", "content": results})
        assert answer.content[0].text == "Done." and answer.stop_reason == "end_turn"
        all_trained(client, 3)
        await sdk.close()


@pytest.mark.parametrize("library", ["openai", "anthropic"])
async def test_a_refusal_is_not_sent_again(library: str) -> None:
    module: Any = pytest.importorskip(library)
    async with serving(fail("gone")) as client:
        if library == "openai":
            sdk = module.AsyncOpenAI(base_url=f"{client.url}/v1", api_key="x")
            asking = sdk.chat.completions.create(model="m", messages=[USER])
        else:
            sdk = module.AsyncAnthropic(base_url=client.url, api_key="x")
            asking = sdk.messages.create(model="m", messages=[USER], max_tokens=5)
        with pytest.raises(module.InternalServerError):
            await asking
        assert client.record.counts["requests"] == 1
        await sdk.close()

"""One turn through three dialects, streamed and not: the same words, the same tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from turnwise.gateway.bodies import Bodies
from turnwise.gateway.responses import read
from turnwise.testing import call, decode, fail, say

from gateway.client import TOOLS, USER, Client, events, serving

TEXT = "I look." + call("look", at="a") + call("look", at="b")
FUNCTION: Any = TOOLS[0]["function"]
MESSAGES_TOOLS = [
    {
        "name": "look",
        "description": FUNCTION["description"],
        "input_schema": FUNCTION["parameters"],
    }
]
RESPONSES_TOOLS = [{"type": "function", **FUNCTION}]
NAMESPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "Others.",
    "tools": [{"type": "function", **FUNCTION}, {"type": "function", "name": "stop"}],
}


def of_chat(body: Any, answer: Any) -> list[Any]:
    message = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": "grass"}
        for one in message.get("tool_calls") or ()
    ]
    return [*body, message, *results]


def of_messages(body: Any, answer: Any) -> list[Any]:
    results = [
        {"type": "tool_result", "tool_use_id": one["id"], "content": "grass"}
        for one in answer["content"]
        if one["type"] == "tool_use"
    ]
    said = {"role": "assistant", "content": answer["content"]}
    return [*body, said, {"role": "user", "content": results}]


def of_responses(body: Any, answer: Any) -> list[Any]:
    results = [
        {"type": "function_call_output", "call_id": one["call_id"], "output": "grass"}
        for one in answer["output"]
        if one["type"] == "function_call"
    ]
    return [*body, *answer["output"], *results]


Dialect = tuple[str, str, list[Any], dict[str, Any], Callable[[Any, Any], list[Any]]]
DIALECTS: list[Dialect] = [
    ("chat/completions", "messages", TOOLS, {}, of_chat),
    ("messages", "messages", MESSAGES_TOOLS, {"max_tokens": 500}, of_messages),
    ("responses", "input", RESPONSES_TOOLS, {"store": False}, of_responses),
]


async def two_turns(client: Client, dialect: Dialect) -> list[Any]:
    path, history, tools, more, grow = dialect
    body = {"model": "m", history: [USER], "tools": tools, **more}
    _, _, first = await client.post(path, body)
    body = {**body, history: grow([USER], json.loads(first))}
    status, _, second = await client.post(path, body)
    assert status == 200, second
    return [json.loads(first), json.loads(second)]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect[0])
async def test_every_dialect_trains_the_same_tokens(dialect: Dialect) -> None:
    kept = []
    for one in (DIALECTS[0], dialect):
        async with serving(TEXT, "Done.") as client:
            await two_turns(client, one)
            (sample,) = client.record.samples().samples
            kept.append(sample)
    assert np.array_equal(kept[0].ids, kept[1].ids)
    assert np.array_equal(kept[0].loss_mask, kept[1].loss_mask)
    trained = kept[1].ids[kept[1].prompt_length :][kept[1].loss_mask == 1]
    assert decode(trained) == TEXT + "<|im_end|>Done.<|im_end|>"


async def test_one_rollout_may_speak_several_dialects() -> None:
    async with serving("one", "two") as client:
        await client.chat([USER])
        body = {"messages": [USER, {"role": "assistant", "content": "one"}, USER], "max_tokens": 9}
        status, _, _ = await client.post("messages", body)
        assert status == 200 and len(client.record.samples().samples) == 1


async def test_messages_streams_what_it_answers() -> None:
    async with serving(TEXT) as client:
        body = {"messages": [USER], "tools": MESSAGES_TOOLS, "max_tokens": 500}
        _, _, whole = await client.post("messages", body)
        mark = {"x-stainless-retry-count": "1"}
        _, _, data = await client.post("messages", {**body, "stream": True}, headers=mark)
        answer, found = json.loads(whole), events(data)
        assert [line[7:] for line in data.decode().splitlines() if line.startswith("event: ")] == [
            event["type"] for event in found
        ]
        assert found[0]["type"] == "message_start" and found[-1]["type"] == "message_stop"
        assert found[-2]["delta"]["stop_reason"] == answer["stop_reason"] == "tool_use"
        blocks = [event["content_block"] for event in found if "content_block" in event]
        for event in found:
            delta = event.get("delta", {})
            if delta.get("type") == "text_delta":
                blocks[event["index"]]["text"] += delta["text"]
            if delta.get("type") == "input_json_delta":
                blocks[event["index"]]["input"] = json.loads(delta["partial_json"])
        assert blocks == answer["content"] and len(client.engine.calls) == 1


async def test_responses_streams_what_it_answers() -> None:
    async with serving(TEXT) as client:
        body = {"input": "hello", "tools": RESPONSES_TOOLS}
        _, _, whole = await client.post("responses", body)
        mark = {"x-stainless-retry-count": "1"}
        _, _, data = await client.post("responses", {**body, "stream": True}, headers=mark)
        answer, found = json.loads(whole), events(data)
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
        assert found[0]["type"] == "response.created"
        assert found[-1] == {
            "type": "response.completed",
            "response": answer,
            "sequence_number": len(found) - 1,
        }
        done = [event for event in found if event["type"] == "response.output_item.done"]
        assert [event["item"] for event in done] == answer["output"]
        added = [event for event in found if event["type"] == "response.output_item.added"]
        assert [event["item"]["id"] for event in added] == [one["id"] for one in answer["output"]]


async def test_a_function_of_a_namespace_is_called_by_both_names_and_known_again() -> None:
    text = call("agents__look", at="a") + call("look", at="b")
    async with serving(text, "Done.") as client:
        body = {"input": [USER], "tools": [NAMESPACE, *RESPONSES_TOOLS]}
        _, _, data = await client.post("responses", body)
        said = json.loads(data)["output"]
        named = [(item.get("namespace"), item["name"]) for item in said]
        assert named == [("agents", "look"), (None, "look")]
        status, _, _ = await client.post(
            "responses", {**body, "input": of_responses([USER], {"output": said})}
        )
        assert status == 200 and len(client.record.samples().samples) == 1
        first, second = (decode(made.prompt_ids) for made in client.engine.calls)
        assert "agents__look agents__stop look" in first and text in second
        (shown,) = [
            tool
            for tool in read(body, Bodies()).tools
            if tool["function"]["name"] == "agents__look"
        ]
        assert shown["function"]["description"] == "Others.\n\nLooks."


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("messages", "stop_sequences", {"messages": [USER], "stop_sequences": [""]}),
        ("messages", "output_format.type", {"messages": [USER], "output_format": {"type": "xml"}}),
        ("messages", "tool_choice", {"messages": [USER], "tool_choice": {"type": "all"}}),
        (
            "messages",
            "tool_choice",
            {
                "messages": [USER],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            },
        ),
        ("messages", "tools[0]", {"messages": [USER], "tools": [{"type": "bash_20250124"}]}),
        (
            "messages",
            "messages[0]",
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        ),
        ("responses", "previous_response_id", {"input": "x", "previous_response_id": "resp_1"}),
        ("responses", "text.format", {"input": "x", "text": {"format": {"type": "json_object"}}}),
        ("responses", "tools[0]", {"input": "x", "tools": [{"type": "web_search"}]}),
        (
            "responses",
            "tools[0].tools[0]",
            {"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "x"}]}]},
        ),
        ("responses", "tools", {"input": "x", "tools": [NAMESPACE, NAMESPACE]}),
        ("responses", "input[0]", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("responses", "input", {"input": []}),
    ],
)
async def test_what_can_not_be_served_exactly_is_refused_in_the_dialects_shape(
    path: str, field: str, body: Any
) -> None:
    async with serving("never") as client:
        status, headers, data = await client.post(path, body)
        error = json.loads(data)["error"]
        assert status == 400 and headers["x-should-retry"] == "false"
        assert field in error["message"] and error["type"] == "invalid_request_error"
        assert client.engine.calls == []


async def test_a_billing_block_that_changes_makes_no_new_history() -> None:
    async with serving("one", "two") as client:
        history: list[Any] = [USER]
        for number in range(2):
            block = {"type": "text", "text": f"x-anthropic-billing-header: cch={number}"}
            system = [block, {"type": "text", "text": "You help."}]
            body = {"system": system, "messages": history, "max_tokens": 99}
            _, _, data = await client.post("messages", body)
            history = [
                *history,
                {"role": "assistant", "content": json.loads(data)["content"]},
                USER,
            ]
        assert len(client.record.samples().samples) == 1


async def test_counted_tokens_are_those_of_the_next_prompt() -> None:
    async with serving("one") as client:
        body = {"system": "You help.", "messages": [USER], "tools": MESSAGES_TOOLS}
        _, _, data = await client.post("messages/count_tokens", body)
        await client.post("messages", {**body, "max_tokens": 9})
        (made,) = client.engine.calls
        assert json.loads(data) == {"input_tokens": len(made.prompt_ids)}


@pytest.mark.parametrize(
    ("path", "signs"),
    [
        ("chat/completions", [": waiting for the policy"] * 4),
        ("messages", ["event: ping"] * 4),
        ("responses", ["event: response.created", *["event: response.in_progress"] * 4]),
    ],
)
async def test_a_stream_that_waits_says_so_again_and_again_in_its_dialects_way(
    path: str, signs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving("late", keepalive_s=0.001) as client:
        heard, sample = asyncio.Event(), client.engine.generate

        async def held(*args: Any, **named: Any) -> Any:
            await heard.wait()
            return await sample(*args, **named)

        monkeypatch.setattr(client.engine, "generate", held)
        body = {"messages": [USER], "input": "x", "stream": True, "max_tokens": 9}
        async with client.http.post(f"{client.url}/v1/{path}", json=body) as answer:
            said: list[str] = []
            while sum(line in signs for line in said) < len(signs):
                said.append((await answer.content.readline()).decode().rstrip())
            assert [line for line in said if line[:1] in ("e", ":")] == signs
            heard.set()
            rest = await answer.content.read()
        assert rest.count(b"late")
        if path == "responses":
            made = [*events("\n".join(said).encode()), *events(rest)]
            assert [event["sequence_number"] for event in made] == [*range(len(made))]
            assert sum(event["type"] == "response.created" for event in made) == 1
            heads = [event["response"] for event in made if "response" in event]
            assert {(one["id"], one["created_at"]) for one in heads} == {
                (made[-1]["response"]["id"], made[-1]["response"]["created_at"])
            }


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
async def test_a_refusal_late_in_a_stream_is_an_event(path: str) -> None:
    async with serving(fail("gone", delay_s=0.2), keepalive_s=0.02) as client:
        body = {"messages": [USER], "input": "x", "stream": True, "max_tokens": 9}
        status, _, data = await client.post(path, body)
        assert status == 200 and "the engine failed" in json.dumps(events(data)[-1])
        assert client.record.metrics()["refused/engine_failed"] == 1


async def test_reasoning_that_a_client_leaves_out_stays_in_the_prompt() -> None:
    async with serving(say("<think>\nhm\n</think>\n\nYes."), "two") as client:
        tools = {"tools": TOOLS}
        message = await client.chat([USER], **tools)
        assert message["content"].strip() == "Yes."
        assert message["reasoning_content"].strip() == "hm"
        await client.chat([USER, {"role": "assistant", "content": "Yes."}, USER], **tools)
        assert "hm" in decode(client.engine.calls[1].prompt_ids)
        assert len(client.record.samples().samples) == 1


async def test_what_an_answer_repeats_of_a_request_may_hold_anything() -> None:
    async with serving("one") as client:
        status, _, data = await client.post(
            "responses", {"input": "x", "metadata": {"a": "\ud800"}}
        )
        assert status == 200 and json.loads(data)["metadata"] == {"a": "\ud800"}


def spoiled(value: Any, key: str) -> Any:
    """The same with the last digit of every such handle changed."""
    if isinstance(value, dict):
        return {
            name: inner[:-1] + ("0" if inner[-1] != "0" else "1")
            if name == key and isinstance(inner, str)
            else spoiled(inner, key)
            for name, inner in value.items()
        }
    return [spoiled(one, key) for one in value] if isinstance(value, list) else value


HANDLES = [
    (0, "id"),
    (1, "id"),
    (1, "signature"),
    (2, "id"),
    (2, "call_id"),
    (2, "encrypted_content"),
]


@pytest.mark.parametrize(("number", "key"), HANDLES)
@pytest.mark.parametrize("forge", [True, False])
async def test_a_forged_handle_makes_a_turn_text_from_outside(
    number: int, key: str, forge: bool
) -> None:
    path, history, tools, more, grow = DIALECTS[number]
    async with serving("<think>\nhm\n</think>\n\n" + TEXT, "two") as client:
        body = {history: [USER], "tools": tools, **more}
        _, _, data = await client.post(path, body)
        said = json.loads(data)
        assert json.dumps(said).count(f'"{key}"')
        told = spoiled(said, key) if forge else said
        status, _, data = await client.post(path, {**body, history: grow([USER], told)})
        assert status == 200, data
        assert len(client.record.samples().samples) == (2 if forge else 1)
        assert bool(client.record.metrics()["forged_handles"]) is forge
        shown = decode(client.engine.calls[1].prompt_ids)
        assert "handle" not in shown and client.record.metrics()["turns"] == 2


async def test_an_items_id_tells_turns_that_say_the_same_and_a_clients_own_says_nothing() -> None:
    async with serving(*["same"] * 2, "a", "b", "c") as client:
        said = []
        for _ in range(2):
            _, _, data = await client.post("responses", {"input": [USER]})
            said += json.loads(data)["output"]
        for item in (said[0], said[1], {**said[1], "id": "msg_of_the_client"}):
            await client.post("responses", {"input": [USER, item, USER]})
        first, second = (call.session_id for call in client.engine.calls[2:4])
        assert first == client.engine.calls[0].session_id
        assert second == client.engine.calls[1].session_id
        assert client.record.metrics()["forks"] == 2 and len(client.record.samples().samples) == 3

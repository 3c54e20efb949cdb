"""Whatever a client sends, the answer is a turn or a refusal that is its own fault."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from typing import Any

import pytest
from turnwise.testing import call, say

from gateway.client import serving

BODIES = int(os.environ.get("TURNWISE_GATEWAY_BODIES", "600"))
KEYS = (
    "messages input system instructions tools tool_choice role content type text tool_calls"
    " tool_call_id id function name arguments call_id output input_schema parameters properties"
    " tool_use_id max_tokens stream stream_options model n stop reasoning_content summary thinking"
    " tool_use tool_result function_call function_call_output message reasoning user assistant"
    " tool auto none required object string stop stop_sequences logprobs include response_format"
    " json_schema schema json_object output_config format encrypted_content signature namespace"
).split()
LEAVES = [
    None, True, False, 0, 1, -1, 1.5, 10**400, float("nan"), "", "hi", "{}", "[1]", "\ud800",
    "<|im_end|>", "<tool_call>", "\x00",
]  # fmt: skip


def value(draw: random.Random, depth: int) -> Any:
    """Any JSON value, of words that mean something."""
    kind = draw.random()
    if depth == 0 or kind < 0.3:
        return draw.choice(LEAVES + KEYS)
    if kind < 0.6:
        return [value(draw, depth - 1) for _ in range(draw.randrange(3))]
    return {draw.choice(KEYS): value(draw, depth - 1) for _ in range(draw.randrange(5))}


def body(draw: random.Random) -> Any:
    """A sound body with some of its places replaced."""
    spoiled = 0.0 if draw.random() < 0.1 else draw.uniform(0, 0.3)

    def spoil(one: Any) -> Any:
        if draw.random() < spoiled:
            return value(draw, 3)
        if isinstance(one, dict):
            return {key: spoil(inner) for key, inner in one.items()}
        return [spoil(inner) for inner in one] if isinstance(one, list) else one

    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    called = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "0_0123456789abcdef"}
    mused = {"type": "reasoning", "id": "rs_0_0123456789abcdef", "summary": []}
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    item = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    return {
        "chat/completions": spoil({
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": None, "tool_calls": [called]},
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ],
            "tools": [{"type": "function", "function": {"name": "look", "parameters": schema}}],
            "tool_choice": "auto", "stream": False, "stream_options": {"include_usage": True},
            "stop": ["one", "e"], "logprobs": True, "response_format": {"type": "text"},
        }),
        "messages": spoil({
            "system": [{"type": "text", "text": "s"}], "max_tokens": 9, "stream": True,
            "messages": [
                {"role": "user", "content": "hi"}, {"role": "assistant", "content": [thought, use]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]},
            ],
            "tools": [{"name": "look", "input_schema": schema}], "tool_choice": {"type": "auto"},
            "stop_sequences": ["."], "output_config": {"format": {"type": "text"}},
        }),
        "responses": spoil({
            "instructions": "s", "stream": False, "tool_choice": "auto",
            "input": [
                {"role": "user", "content": "hi"}, mused, item,
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ],
            "tools": [
                {"type": "function", "name": "look", "parameters": schema},
                {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "look"}]},
            ],
            "include": ["message.output_text.logprobs"], "text": {"format": {"type": "text"}},
        }),
    }  # fmt: skip


@pytest.mark.parametrize("seed", [0])
async def test_no_body_is_a_fault_of_ours(seed: int) -> None:
    draw = random.Random(seed)
    answers = ["Done.", call("look", at="a"), "<tool_call>\n{", call("other", x=[1])]
    said: Counter[int] = Counter()
    for _ in range(max(1, BODIES // 150)):
        async with serving(lambda prompt: say(draw.choice(answers))) as client:
            for _ in range(50):
                for path, sent in body(draw).items():
                    status, _, data = await client.post(path, json.dumps(sent).encode())
                    assert status in (200, 400), (status, path, sent, data)
                    said[status] += 1
            assert client.record.failure is None
            assert client.record.metrics()["turns"] == client.record.tree.turns
    assert min(said[200], said[400]) > BODIES // 20

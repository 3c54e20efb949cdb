"""A policy behind an endpoint: native calls, and a history that is refused for its length."""

from __future__ import annotations

import json
from typing import Any

from turnwise.episode import Boundary, Episode
from turnwise.models.client import ChatClient
from turnwise.models.config import ChatConfig
from turnwise.policy import EndpointPolicy
from turnwise.retrieval import Document
from turnwise.rollout import Rollout
from turnwise.testing.servers import Call, FakeChat, Misbehaviour, edit, status

from apps.trainers.toolorchestra.episode import run_episode
from apps.trainers.toolorchestra.history import LEFT_OUT
from apps.trainers.toolorchestra.tests.orchestra import OPTIONS, QUERY, TASK, Cast, Model, Search

ROOM = 4_000
"""Characters of a conversation that the endpoint reads."""


def calls(tool: str, expert: str) -> Misbehaviour:
    """An answer that calls a tool natively."""

    def change(answer: dict[str, Any]) -> None:
        function = {"name": tool, "arguments": json.dumps({"expert": expert})}
        found = {"content": None, "tool_calls": [{"id": "x", "function": function}]}
        answer["choices"][0]["message"] |= found

    return edit(change)


async def played(searches: int) -> tuple[Episode, list[Call]]:
    """An episode that searches so many times and has the question answered then."""
    turns = [calls("search", "search-1")] * searches + [calls("answer", "answer-2")]
    cast = Cast(small=Model("small", [QUERY]), search=Search([Document("", "otter " * 60, "d")]))
    answered: list[Call] = []

    def misbehave(call: Call) -> Misbehaviour:
        if len(json.dumps(call.body["messages"])) > ROOM:
            return status(400, "maximum context length exceeded")
        answered.append(call)
        return turns[len(answered) - 1]

    async with FakeChat(lambda messages: "") as server:
        server.misbehave = misbehave
        config = ChatConfig(base_url=f"{server.url}/v1", model="m", backoff_s=0.001)
        client = ChatClient(config, boundary=Boundary.ENGINE)
        rollout = Rollout(TASK, "task", "task#0", "task", seed=0)
        policy = EndpointPolicy(client=client)
        episode = await run_episode(rollout, policy, cast.served(OPTIONS), OPTIONS)
        await client.close()
    return episode, answered


async def test_native_calls_of_a_policy_are_its_choices() -> None:
    episode, answered = await played(1)
    assert episode.ending.label == "finished" and episode.metrics["correct"] == 1
    assert episode.segments == () and episode.metrics["shortened"] == 0
    assert [one["function"]["name"] for one in answered[0].body["tools"]] == [
        "search", "enhance_reasoning", "answer",
    ]  # fmt: skip


async def test_what_an_endpoint_refuses_for_its_length_is_shortened_and_still_a_conversation() -> (
    None
):
    episode, answered = await played(9)
    assert episode.ending.label == "finished" and episode.metrics["shortened"] > 0
    for call in answered:
        messages = call.body["messages"]
        assert TASK.question in messages[1]["content"]
        assert len(json.dumps(messages)) <= ROOM
        open_calls: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                assert message["tool_call_id"] == open_calls.pop()
            open_calls += [one["id"] for one in message.get("tool_calls", [])]
            for one in message.get("tool_calls", []):
                json.loads(one["function"]["arguments"])
        assert not open_calls
    assert LEFT_OUT in str(answered[-1].body["messages"])

"""A rollout behind the gateway and its dialects, and an engine that keeps what passes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import tokendelta
from numpy.typing import NDArray
from turnwise.engine import Completion, SamplingParams
from turnwise.engine.sglang import SGLangEngine
from turnwise.gateway import Bounds, Gateway, Record
from turnwise.policy import Policy
from turnwise.rollout import Rollout

SHIPPED = Path(__file__).parents[2] / "apps/trainers/tau/policy"
CONTEXT, LONG = 2048, 1800
USER = {"role": "user", "content": "Hello, I want to cancel my order #W2378156, please."}


@dataclass(frozen=True)
class Dialect:
    """How one dialect asks and answers."""

    path: str
    history: str
    schema: Callable[[Any], dict[str, Any]]
    stop: str
    text: Callable[[Any], str]
    joined: Callable[[list[Any]], str]


def _chat_joined(events: list[Any]) -> str:
    deltas = [one["choices"][0]["delta"] for one in events if one != "[DONE]" and one["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def _message_text(answer: Any) -> str:
    return "".join(block["text"] for block in answer["content"] if block["type"] == "text")


def _response_text(answer: Any) -> str:
    said = [item["content"] for item in answer["output"] if item["type"] == "message"]
    return "".join(part["text"] for content in said for part in content)


DIALECTS = {
    "chat": Dialect(
        "chat/completions",
        "messages",
        lambda one: {
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": one}}
        },
        "stop",
        lambda answer: answer["choices"][0]["message"]["content"] or "",
        _chat_joined,
    ),
    "responses": Dialect(
        "responses",
        "input",
        lambda one: {"text": {"format": {"type": "json_schema", "name": "x", "schema": one}}},
        "stop",
        _response_text,
        lambda events: _response_text(events[-1]["response"]),
    ),
    "messages": Dialect(
        "messages",
        "messages",
        lambda one: {"output_config": {"format": {"type": "json_schema", "schema": one}}},
        "stop_sequences",
        _message_text,
        lambda events: "".join(one.get("delta", {}).get("text", "") for one in events),
    ),
}
WAYS = [(name, stream) for name in DIALECTS for stream in (False, True)]


class Watched:
    """An engine that keeps what passes."""

    takes_grammar = True

    def __init__(self, engine: SGLangEngine) -> None:
        self.engine = engine
        self.turns: list[tuple[list[int], SamplingParams, Completion]] = []

    async def generate(
        self, prompt_ids: Any, params: SamplingParams, *, session_id: str
    ) -> Completion:
        done = await self.engine.generate(prompt_ids, params, session_id=session_id)
        self.turns.append((prompt_ids.tolist(), params, done))
        return done

    async def abort(self) -> None:
        await self.engine.abort()

    async def release(self, session_id: str) -> None:
        await self.engine.release(session_id)

    async def close(self) -> None:
        await self.engine.close()


@dataclass
class Client:
    """One rollout's."""

    url: str
    http: aiohttp.ClientSession
    record: Record
    engine: Watched
    profile: tokendelta.Profile
    server: str

    async def ask(
        self, name: str, stream: bool = False, history: Any = None, **fields: Any
    ) -> tuple[int, str, Any]:
        """Status, text, and the answer or its events."""
        dialect = DIALECTS[name]
        body = {dialect.history: history or [USER], "max_tokens": 128, "stream": stream, **fields}
        async with self.http.post(f"{self.url}/v1/{dialect.path}", json=body) as answer:
            data = (await answer.read()).decode()
        if answer.status != 200:
            return answer.status, data, json.loads(data)
        if not stream:
            found = json.loads(data)
            return 200, dialect.text(found), found
        lines = [line[6:] for line in data.splitlines() if line.startswith("data: ")]
        events: list[Any] = [line if line == "[DONE]" else json.loads(line) for line in lines]
        if events[-1] != "[DONE]" and {"error"} & {*events[-1], events[-1].get("type")}:
            return 200, data, events
        return 200, dialect.joined(events), events

    async def running(self) -> int:
        """Requests that the server has."""
        async with self.http.get(f"{self.server}/v1/loads") as answer:
            loads = (await answer.json())["loads"]
        counts = ("num_reqs", "num_running_reqs", "num_waiting_reqs")
        return sum(sum(one.get(count, 0) for count in counts) for one in loads)

    async def scored(self, prompt: list[int], turn: Completion) -> NDArray[np.float32]:
        """The server's log-probs of a turn's ids without a grammar."""
        asked = {
            "input_ids": [*prompt, *turn.ids.tolist()],
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
        }
        async with self.http.post(f"{self.server}/generate", json=asked) as answer:
            meta = (await answer.json())["meta_info"]
        rows = meta["input_token_logprobs"][-len(turn.ids) :]
        assert [row[1] for row in rows] == turn.ids.tolist(), rows
        return np.array([row[0] for row in rows], np.float32)

    async def until(self, running: bool) -> float:
        """Seconds until the server has requests, or none."""
        began = time.perf_counter()
        while bool(await self.running()) is not running:
            await asyncio.sleep(0.02)
        return time.perf_counter() - began

    def text(self, ids: Any) -> str:
        return self.profile.text_of([int(one) for one in ids])


class Bench:
    """A server and the policy that it serves."""

    def __init__(self, url: str) -> None:
        from transformers import AutoTokenizer

        self.url = url
        self.profile = tokendelta.Profile.from_tokenizer(AutoTokenizer.from_pretrained(SHIPPED))

    @asynccontextmanager
    async def rollout(self, **sampling: Any) -> AsyncIterator[Client]:
        """A gateway with one rollout; `sampling` goes to the server with every turn."""
        engine = Watched(SGLangEngine(self.url, sampling=sampling))
        policy = Policy(
            engine=engine,
            profile=self.profile,
            max_context_tokens=CONTEXT - 2,
            sampling=SamplingParams(temperature=0.0, max_new_tokens=LONG),
        )
        task = Rollout(task="t", task_id="t", rollout_id="r", group_id="g", seed=1)
        bounds = Bounds(grace_s=0.1)
        async with (
            Gateway(keepalive_s=0.02) as gateway,
            gateway.rollout(policy, task, bounds) as (url, record),
            aiohttp.ClientSession() as http,
        ):
            yield Client(url, http, record, engine, self.profile, self.url)
        await engine.close()

"""The interception server of `verifiers` with its train client, as a contender.

PYTHON_WITH_VERIFIERS -m benchmarks.gateway.verifiers_interception TOKENIZER

Its connection to the engine is replaced by the script; everything before it is the package's own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import types
from typing import Any

from renderers import Qwen3RendererConfig  # pants: no-infer-dep
from verifiers.v1.clients import ModelContext  # pants: no-infer-dep
from verifiers.v1.configs.client import TrainClientConfig  # pants: no-infer-dep
from verifiers.v1.interception.server import InterceptionServer  # pants: no-infer-dep
from verifiers.v1.session import RolloutSession  # pants: no-infer-dep
from verifiers.v1.task import TaskData  # pants: no-infer-dep
from verifiers.v1.trace import AgentInfo, Trace, TraceTask  # pants: no-infer-dep

from benchmarks.gateway.contender import Script, Server, answer


class Engine:
    """In place of the client of the engine."""

    base_url = "http://engine/v1"

    def __init__(self, scripts: dict[str, Script]) -> None:
        self._scripts = scripts

    async def get(self, *asked: Any, **options: Any) -> dict[str, Any]:
        return {"data": []}

    async def post(self, url: str, *, body: Any, options: Any, **other: Any) -> Any:
        (session,) = options["headers"].values()
        said = self._scripts[session].next(body["token_ids"])
        content = [{"token": f"token_id:{token}", "logprob": -1.0} for token in said]
        choice = {"token_ids": said, "logprobs": {"content": content}, "finish_reason": "stop"}
        return types.SimpleNamespace(content=json.dumps({"choices": [choice]}).encode())

    async def close(self) -> None:
        pass


class Verifiers(Server):
    """One interception server."""

    def __init__(self, tokenizer: str) -> None:
        renderer = Qwen3RendererConfig(thinking_retention="all")
        self._config = TrainClientConfig(
            base_url=Engine.base_url, renderer=renderer, renderer_model_name=tokenizer
        )
        self._scripts: dict[str, Script] = {}
        self._open: dict[str, tuple[RolloutSession, tuple[str, str]]] = {}

    async def start(self) -> None:
        self._server = InterceptionServer()
        await self._server.start()

    async def open(self, name: str, script: Script) -> dict[str, str]:
        task = TraceTask(type="Task", data=TaskData(prompt="x"))
        trace: Any = Trace(task=task, agent=AgentInfo(config={}))
        self._scripts[trace.id] = script
        session = RolloutSession(ctx=ModelContext("policy", self._config), trace=trace)
        secrets = self._server.register(session)
        session.client.client = Engine(self._scripts)
        self._open[name] = (session, secrets)
        return {"url": self._server.base_url, "key": secrets[0]}

    async def close(self, name: str) -> list[tuple[list[int], list[int]]]:
        session, secrets = self._open.pop(name)
        self._server.unregister(*secrets)
        rows, seen = [], set()
        for branch in session.trace.branches:
            ids: list[int] = []
            mask: list[int] = []
            for node in branch.nodes:
                # A node that branches share is trained with the first of them.
                trained = id(node) not in seen
                seen.add(id(node))
                ids += node.token_ids
                mask += [int(one and trained) for one in node.mask]
            rows.append((ids, mask))
        del self._scripts[session.trace.id]
        return rows


if __name__ == "__main__":
    asyncio.run(answer(Verifiers(sys.argv[1])))

"""slime's `slime.agent` adapters as a contender, from a checkout on the path.

python -m benchmarks.gateway.slime_agent TOKENIZER

Its engine call is replaced where its authors say that tests may; `sglang`, which is not installed
here, by our parser of calls. Both dialects it has are served by one application.
"""

from __future__ import annotations

import asyncio
import json
import sys
import types
from typing import Any

import toolparse
from aiohttp import web
from transformers import AutoTokenizer

from benchmarks.gateway.contender import Script, Server, answer


class _Call:
    def __init__(self, name: str, parameters: str) -> None:
        self.name, self.parameters = name, parameters


class FunctionCallParser:
    """sglang's, as `slime.agent.parsing` uses it."""

    def __init__(self, tools: Any, tool_call_parser: str) -> None:
        tools = [{"type": "function", "function": vars(one.function)} for one in tools]
        self._tools = toolparse.ToolSet(tools)
        self._format = tool_call_parser

    def has_tool_call(self, text: str) -> bool:
        return "<tool_call>" in text

    def parse_non_stream(self, text: str) -> tuple[str, list[_Call]]:
        found = toolparse.parse(
            text.removesuffix("<|im_end|>"), format=self._format, tools=self._tools
        )
        return found.content, [_Call(one.name, json.dumps(one.arguments)) for one in found.calls]


def install_stubs() -> None:
    """What slime imports and this machine has not."""
    plain = {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.entrypoints": {},
        "sglang.srt.entrypoints.openai": {},
        "sglang.srt.entrypoints.openai.protocol": {
            "Function": types.SimpleNamespace,
            "Tool": types.SimpleNamespace,
        },
        "sglang.srt.function_call": {},
        "sglang.srt.function_call.function_call_parser": {"FunctionCallParser": FunctionCallParser},
        "slime.utils.http_utils": {"is_port_available": lambda port: True},
    }
    for name, holds in plain.items():
        module = types.ModuleType(name)
        vars(module).update(holds)
        sys.modules[name] = module


class Slime(Server):
    """One adapter a dialect, a session in both for each rollout."""

    def __init__(self, tokenizer: Any) -> None:
        from slime.agent import adapters  # pants: no-infer-dep
        from slime.agent.adapters import common  # pants: no-infer-dep

        given = {"tokenizer": tokenizer, "sglang_url": "", "tool_parser": "qwen25"}
        self._adapters = [adapters.OpenAIAdapter(**given), adapters.AnthropicAdapter(**given)]
        self._scripts: dict[str, Script] = {}

        async def generate(
            prompt_ids: list[int], session: Any, body: Any, *, adapter: Any, session_id: str
        ) -> Any:
            said = self._scripts[session_id].next(prompt_ids)
            return common.TurnRecord(list(prompt_ids), said, "stop", [-1.0] * len(said))

        common.call_sglang_generate = generate

    async def start(self) -> None:
        app = web.Application(client_max_size=2**26)
        chat, messages = self._adapters
        app.router.add_post("/v1/chat/completions", chat._run_turn)
        app.router.add_post("/v1/messages", messages._run_turn)
        # As its own rollouts run it: a client that leaves cancels its turn.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def open(self, name: str, script: Script) -> dict[str, str]:
        self._scripts[name] = script
        for adapter in self._adapters:
            adapter.open_session(name)
        return {"url": self._url, "key": name}

    async def close(self, name: str) -> list[tuple[list[int], list[int]]]:
        from slime.utils.types import Sample  # pants: no-infer-dep

        rows = []
        for adapter in self._adapters:
            for one in await adapter.finish_session(name, base_sample=Sample(index=0)):
                mask = [0] * (len(one.tokens) - len(one.loss_mask)) + list(one.loss_mask)
                rows.append((list(one.tokens), mask))
        del self._scripts[name]
        return rows


if __name__ == "__main__":
    install_stubs()
    asyncio.run(answer(Slime(AutoTokenizer.from_pretrained(sys.argv[1]))))

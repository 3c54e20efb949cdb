"""The checks of a real server hold against the stand-in of it that the tests use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiohttp import web
from transformers import AutoTokenizer
from turnwise.testing.servers import Call, FakeSGLang, Turn

from benchmarks.gateway import contract
from benchmarks.gateway.asking import SHIPPED

SAYS = "I can help you with that. Which items do you mean, and why?"
LONG_TURN = 100


def stand_in() -> FakeSGLang:
    """Says one sentence, and keeps to stop strings and schemas as SGLang does."""
    tokenizer: Any = AutoTokenizer.from_pretrained(SHIPPED)

    async def answer(call: Call) -> Turn:
        asked = call.body["sampling_params"]
        text = '{"at": "north", "times": 3}' if "json_schema" in asked else SAYS
        ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
        for stop in asked.get("stop", ()):
            cuts = [k for k in range(1, len(ids)) if stop in tokenizer.decode(ids[:k])]
            ids = ids[: cuts[0]] if cuts else ids
        if asked.get("ignore_eos"):
            ids = [tokenizer.encode("a")[0]] * asked["max_new_tokens"]
        finish = "length" if asked.get("ignore_eos") else "stop"
        return Turn(ids, [-0.5] * len(ids), finish)

    def slow(call: Call) -> float:
        asked = call.body["sampling_params"]
        long = asked.get("ignore_eos") and asked["max_new_tokens"] > LONG_TURN
        return 3600.0 if long or json.dumps(contract.SLOW_SCHEMA) == asked.get("json_schema") else 0

    def meta(call: Call, turn: Turn) -> dict[str, Any]:
        return {"input_token_logprobs": [[-0.5, one, None] for one in call.body["input_ids"]]}

    def misbehave(call: Call) -> Any:
        schema = call.body["sampling_params"].get("json_schema")
        if schema is None or json.loads(schema) not in contract.BAD_SCHEMAS.values():
            return None

        async def refuse(request: web.Request, honest: Any) -> web.Response:
            told = {"error": {"message": "Failed to compile json grammar: no such type"}}
            return web.json_response(told, status=400)

        return refuse

    server = FakeSGLang(answer)
    server.slow, server.more_meta, server.misbehave = slow, meta, misbehave
    return server


async def test_every_check_holds_against_the_stand_in(tmp_path: Path) -> None:
    async with stand_in() as server:
        results = await contract.run_checks(server.url, tmp_path)
    assert {name: row.get("traceback") for name, row in results.items()} == dict.fromkeys(
        contract.CHECKS
    )
    assert json.loads((tmp_path / "results.json").read_text()).keys() == results.keys()

"""Every engine keeps the contract, and an engine that breaks it is found out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from turnwise.engine import Completion, Engine
from turnwise.engine.scripted import ScriptedEngine, reply
from turnwise.engine.sglang import SGLangEngine
from turnwise.engine.torch_engine import TorchEngine
from turnwise.testing.conformance import CLAIMS, Claim, Subject
from turnwise.testing.servers import Call, FakeSGLang, Turn

PROMPT = np.array([5, 6, 7, 8], dtype=np.int32)
STOP, CONTEXT = 2, 96
LONG_S = 3600.0


@asynccontextmanager
async def scripted(delay_s: float = 0.0) -> AsyncIterator[Engine]:
    engine = ScriptedEngine(
        lambda prompt: reply([11, 12, STOP], logprobs=[-0.25, -1.5, 0.0], delay_s=delay_s)
    )
    yield engine
    await engine.close()


async def _say(call: Call) -> Turn:
    return Turn([11, 12, STOP], [-0.25, -1.5, 0.0])


@asynccontextmanager
async def sglang(delay_s: float = 0.0) -> AsyncIterator[Engine]:
    async with FakeSGLang(_say, delay_s=delay_s) as server:
        engine = SGLangEngine(server.url, max_context_tokens=CONTEXT)
        yield engine
        await engine.close()


@cache
def model() -> Any:
    torch.manual_seed(3)
    made: Any = Qwen3ForCausalLM
    found = made(
        Qwen3Config(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=65_536,
            initializer_range=0.4,
        )
    ).eval()
    with torch.no_grad():
        found.lm_head.weight[STOP] *= 2.0
    return found


@asynccontextmanager
async def torch_engine(context: int = CONTEXT) -> AsyncIterator[Engine]:
    engine = TorchEngine(model(), rows=4, context=context, verify=False)
    yield engine
    await engine.close()


SUBJECTS = {
    "scripted": Subject(
        make=scripted, prompt=PROMPT, stop_ids=(STOP,), make_slow=lambda: scripted(LONG_S)
    ),
    "sglang": Subject(
        make=sglang,
        prompt=PROMPT,
        stop_ids=(STOP,),
        context=CONTEXT,
        make_slow=lambda: sglang(LONG_S),
    ),
    "torch": Subject(
        make=torch_engine,
        prompt=PROMPT,
        stop_ids=tuple(range(STOP, 32, 3)),
        context=CONTEXT,
        make_slow=lambda: torch_engine(65_536),
    ),
}


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
async def test_every_engine_keeps_the_contract(claim: Claim, name: str) -> None:
    await claim(SUBJECTS[name])


class Careless:
    """An engine that breaks the contract in one way."""

    def __init__(self, engine: Engine, fault: str) -> None:
        self._engine, self._fault = engine, fault
        self._closed = False

    async def generate(self, prompt_ids: Any, params: Any, *, session_id: str) -> Completion:
        fault = self._fault
        if fault == "answers when closed" and self._closed:
            return Completion(np.array([STOP], np.int32), np.zeros(1, np.float32), "stop")
        if fault == "ignores the length":
            params = replace(params, max_new_tokens=64)
        if fault == "writes into the prompt":
            prompt_ids[0] = 1
        turn = await self._engine.generate(prompt_ids, params, session_id=session_id)
        if fault == "drops the stop token":
            return replace(turn, ids=turn.ids[:-1], logprobs=turn.logprobs[:-1])
        if fault == "positive log-probs":
            return replace(turn, logprobs=-turn.logprobs)
        if fault == "64-bit ids":
            return replace(turn, ids=turn.ids.astype(np.int64))
        if fault == "says stop for length" and turn.finish == "length":
            return replace(turn, finish="stop")
        if fault == "finishes what was aborted" and turn.finish == "abort":
            return replace(turn, finish="stop")
        if fault == "answers by session":
            return replace(turn, ids=turn.ids + len(session_id) % 2)
        return turn

    async def release(self, session_id: str) -> None:
        if self._fault == "release of the unknown" and session_id == "never seen":
            raise KeyError(session_id)
        await self._engine.release(session_id)

    async def close(self) -> None:
        self._closed = True
        await self._engine.close()


@pytest.mark.parametrize(
    "fault",
    [
        "answers when closed",
        "ignores the length",
        "writes into the prompt",
        "drops the stop token",
        "positive log-probs",
        "64-bit ids",
        "says stop for length",
        "finishes what was aborted",
        "answers by session",
        "release of the unknown",
    ],
)
async def test_an_engine_that_breaks_the_contract_is_found_out(fault: str) -> None:
    @asynccontextmanager
    async def make(delay_s: float = 0.0) -> AsyncIterator[Engine]:
        async with scripted(delay_s) as engine:
            yield Careless(engine, fault)

    subject = replace(SUBJECTS["scripted"], make=make, make_slow=lambda: make(LONG_S))
    broken = []
    for claim in CLAIMS:
        try:
            await claim(subject)
        except Exception:
            broken.append(claim)
    assert broken

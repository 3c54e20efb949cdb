"""Turnwise's gateway as a contender.

python -m benchmarks.gateway.ours TOKENIZER
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Any

import tokendelta
from transformers import AutoTokenizer
from turnwise.engine import Completion
from turnwise.engine.scripted import ScriptedEngine, reply
from turnwise.gateway import Gateway, Record
from turnwise.policy import Policy
from turnwise.rollout import Rollout

from benchmarks.gateway.contender import Script, Server, answer


class _Engine(ScriptedEngine):
    """Keeps its calls in the script alone."""

    async def generate(self, *asked: Any, **options: Any) -> Completion:
        completion = await super().generate(*asked, **options)
        self.calls.clear()
        return completion


class Ours(Server):
    """One gateway."""

    def __init__(self, tokenizer: Any) -> None:
        self._profile = tokendelta.Profile.from_tokenizer(tokenizer)
        self._rollouts: dict[str, tuple[AsyncExitStack, Record]] = {}

    async def start(self) -> None:
        self._gateway = await Gateway().__aenter__()

    async def open(self, name: str, script: Script) -> dict[str, str]:
        policy = Policy(
            engine=_Engine(lambda prompt: reply(script.next(prompt))),
            profile=self._profile,
            max_context_tokens=1_000_000,
        )
        rollout = Rollout(task="", task_id="t", rollout_id=name, group_id="g", seed=1)
        stack = AsyncExitStack()
        url, record = await stack.enter_async_context(self._gateway.rollout(policy, rollout))
        self._rollouts[name] = (stack, record)
        return {"url": url, "key": "none"}

    async def close(self, name: str) -> list[tuple[list[int], list[int]]]:
        stack, record = self._rollouts.pop(name)
        await stack.aclose()
        return [(one.ids.tolist(), _mask(one)) for one in record.samples().samples]


def _mask(sample: Any) -> list[int]:
    mask: list[int] = [0] * sample.prompt_length + sample.loss_mask.tolist()
    return mask


if __name__ == "__main__":
    asyncio.run(answer(Ours(AutoTokenizer.from_pretrained(sys.argv[1]))))

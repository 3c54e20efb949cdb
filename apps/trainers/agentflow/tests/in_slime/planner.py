"""A planner for a fake engine, and the options it is played with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from slime_standin.errands import scores
from transformers import AutoTokenizer
from turnwise.testing.servers import Call, Turn

POLICY = Path(__file__).parents[2] / "policy"


class Planner:
    """Analyses, then names a tool at random; every third step can't be read."""

    def __init__(self) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(POLICY)
        self._rng = random.Random(5)
        self.pace_s = 0.0

    async def answer(self, call: Call) -> Turn:
        prompt = self._tokenizer.decode(call.body["input_ids"])
        text = "It asks for a number. " * self._rng.randint(1, 4)
        if "Next step." in prompt:
            tool = self._rng.choice(["python_coder", "base_generator"])
            text = f"Sub-Goal: Compute it.\nTool Name: {tool}"
            if self._rng.random() < 1 / 3:
                text = "I would compute it."
        ids = [*self._tokenizer.encode(text), self._tokenizer.eos_token_id]
        return Turn(ids, scores(ids))

    def slow(self, call: Call) -> float:
        return self.pace_s * (1 + ord(call.session[0]) % 5) if self.pace_s else 0.0


def options(objective: str = "turn-mean") -> dict[str, Any]:
    """`args.turnwise`: the frozen models are rules, programs run in the sandbox."""
    return {
        "method": "agentflow",
        "helpers": "rules",
        "prompt": "compact",
        "objective": objective,
        "max_steps": 4,
        "sandbox": {"wall_s": 5.0},
    }

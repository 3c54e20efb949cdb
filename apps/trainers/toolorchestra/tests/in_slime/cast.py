"""A policy for a fake engine, experts for a fake endpoint, and the options they are played with."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from slime_standin.errands import save_tokenizer, scores
from turnwise.testing import byte_tokenizer
from turnwise.testing import call as call_tool
from turnwise.testing.servers import Call, Turn

from apps.trainers.toolorchestra.prompts import asked_tool, read_data

POLICY = save_tokenizer(Path(tempfile.mkdtemp()))
EXPERTS = [
    {"role": "reasoner-1", "tool": "enhance_reasoning", "model": "small", "write_price": 1},
    {"role": "answer-1", "tool": "answer", "model": "small", "write_price": 1},
    {"role": "answer-2", "tool": "answer", "model": "large", "write_price": 20},
]
STAND_IN = {"role": "expert-1", "tool": "call_expert", "model": "large", "write_price": 20}
ACTS = call_tool("create_task", user_id="user_1", title="Important Meeting")
ANSWER = "\\boxed{%d}"


class Policy:
    """Has the question worked on now and then, then answered by whom it likes; every eighth turn
    names nobody. With customers it acts itself, hands over or speaks.

    Attributes:
        serves: Whether it is with customers.
        pace_s: Seconds that its turns take, more or less.
    """

    def __init__(self) -> None:
        self._rng = random.Random(5)
        self.serves = False
        self.pace_s = 0.0

    async def answer(self, call: Call) -> Turn:
        rng = self._rng
        if self.serves:
            text = rng.choice([ACTS, call_tool("call_expert", expert="expert-1"), "It is done."])
            return _turn(text)
        text = rng.choice(["answer answer-1", "answer answer-2", "enhance_reasoning reasoner-1"])
        if rng.random() < 1 / 8:
            text = "I know it myself."
        return _turn(text)

    def slow(self, call: Call) -> float:
        return self.pace_s * (1 + ord(call.session[0]) % 5) if self.pace_s else 0.0


def _turn(text: str) -> Turn:
    tokenizer = byte_tokenizer()
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    return Turn(ids, scores(ids))


def says(messages: list[dict[str, Any]]) -> str:
    """Every expert: sums of even numbers are right."""
    prompt = messages[-1]["content"]
    if "\n\n{" not in prompt:
        return "It is all done."
    first = int(read_data(prompt)["question"].split()[2])
    if asked_tool(prompt) == "answer":
        return ANSWER % (first * 7 + first % 2)
    return f"It could be {first * 7}, said {'slowly ' * first}"


def options(url: str, **more: Any) -> dict[str, Any]:
    """`args.turnwise`."""
    model = {"base_url": url, "model": "frozen", "backoff_s": 0.01, "deadline_s": 60}
    return {
        "method": "toolorchestra",
        "prompt": "compact",
        "run_code": False,
        "max_turns": 4,
        "models": {"small": model, "large": model},
        "table": EXPERTS,
        "preferences": {"accuracy": 1, "cost": 0.5},
        "breaker": {"failures": 1_000},
        **more,
    }

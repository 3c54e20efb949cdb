"""A reader for a fake engine, the texts that it reads, and the options it is played with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from slime_standin.errands import scores
from transformers import AutoTokenizer
from turnwise.testing.servers import Call, Turn

from apps.trainers.memagent.laptop.baselines import below
from apps.trainers.memagent.laptop.demonstrations import SECTION
from apps.trainers.memagent.laptop.world import Story, make_story

POLICY = Path(__file__).parents[2] / "policy"
SECTIONS = (1, 2, 3, 6, 12, 20, 30, 39)
"""Of the texts; an episode has a turn more, or ends with its first bad memory."""


def stories(each: int) -> list[Story]:
    """So many of each length."""
    return [
        make_story(
            100 * sections + number,
            f"{sections}/{number}",
            kind="both",
            order="random",
            sentences=max(2, SECTION * sections),
        )
        for number in range(each)
        for sections in SECTIONS
    ]


class Reader:
    """Keeps a sentence or two, now and then nothing, and answers right half of the time."""

    def __init__(self, told: list[Story]) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(POLICY)
        self._answers = {story.question: story.answer for story in told}
        self._rng = random.Random(5)
        self.pace_s = 0.0

    async def answer(self, call: Call) -> Turn:
        prompt = self._tokenizer.decode(call.body["input_ids"])
        if "\nSection\n" in prompt:
            sentences = below("Section", prompt).split(".")[:-1]
            kept = self._rng.sample(sentences, min(len(sentences), self._rng.randint(1, 2)))
            text = "".join(f"{one}." for one in kept) if self._rng.random() < 0.99 else ""
        else:
            right = self._answers[below("Problem", prompt)]
            text = right if self._rng.random() < 0.5 else "Oban"
        ids = [*self._tokenizer.encode(text), self._tokenizer.eos_token_id]
        return Turn(ids, scores(ids))

    def slow(self, call: Call) -> float:
        return self.pace_s


def options(objective: str, **more: Any) -> dict[str, Any]:
    """`args.turnwise`."""
    return {
        "method": "memagent",
        "objective": objective,
        "prompt": "compact",
        "answer": "whole",
        "chunk_tokens": 25,
        "max_memory_tokens": 20,
        "max_final_tokens": 8,
        "max_chunks": 40,
        "on_bad_memory": "stop",
        **more,
    }

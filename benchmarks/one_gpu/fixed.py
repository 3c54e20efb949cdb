"""A task of fixed lengths, for policies with random weights: what is measured is speed alone.

A prompt of `prompt-words` words, half of them common to all, and one turn that ends with the run's
`--rollout-max-response-len`, since such a policy hardly ever ends it. The reward is drawn, so that
groups have both outcomes and are trained on. `messages` gives a peer the same prompts.
"""

from __future__ import annotations

import random
from pathlib import Path

from pydantic import Field
from turnwise import AnyPolicy, Conversation, Ending, Episode, Method, MethodOptions, Rollout, Row

WORDS = (
    "order item customer return cancel pending delivered address payment refund exchange gift "
    "card account email name zip reason product option price status ship track confirm"
).split()
TASKS = {"train": 64, "held-out": 2}


class FixedOptions(MethodOptions):
    """Of the prompts."""

    prompt_words: int = Field(default=200, ge=2)
    """Words of a prompt; 200 are 500 to 580 tokens of the shipped tokenizer."""


def messages(seed: str, words: int) -> list[dict[str, str]]:
    """The prompt of a task: a common system message, and a user's of its own."""
    common, own = random.Random("common"), random.Random(seed)
    return [
        {"role": "system", "content": " ".join(common.choices(WORDS, k=words // 2))},
        {"role": "user", "content": " ".join(own.choices(WORDS, k=words - words // 2))},
    ]


class Fixed(Method[FixedOptions, str]):
    """One turn of fixed length, with a drawn reward."""

    shipped = Path(__file__).parents[2] / "apps/trainers/tau/policy"

    def rows(self, split: str) -> list[Row]:
        return [
            Row(prompt=f"{split}/{place}", id=f"{split}/{place}") for place in range(TASKS[split])
        ]

    def task(self, row: Row) -> str:
        return str(row.prompt)

    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        score = float(random.Random(rollout.seed).random() < 0.5)
        async with Conversation(policy, rollout) as talk:
            turn = await talk.ask(messages(rollout.task, self.options.prompt_words))
            return talk.episode(turn.ending or Ending.finished(), score)

"""A model that is asked once, as a method: the plain model that others are measured against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.conversation import Conversation
from turnwise.episode import Ending, Episode
from turnwise.method import Method, MethodOptions
from turnwise.policy import AnyPolicy
from turnwise.rollout import Rollout
from turnwise.rows import Row

ANSWER_DEADLINE_S = 1800.0
"""For the answer, repeats of the request included."""

Messages = Sequence[Mapping[str, Any]]


class AskedOnce(Method[MethodOptions, Messages]):
    """One question to the model, and its answer.

    It has no reward of its own: every answer scores 0 until a `Benchmark` grades it.
    """

    name = "plain"

    def task(self, row: Row) -> Messages:
        """The row's messages, or its text as the one message of a user."""
        if isinstance(row.prompt, str):
            return [{"role": "user", "content": row.prompt}]
        return row.prompt

    async def run(self, rollout: Rollout[Messages], policy: AnyPolicy) -> Episode:
        """See `Method`."""
        async with Conversation(policy, rollout, deadline_s=ANSWER_DEADLINE_S) as talk:
            turn = await talk.ask(rollout.task)
            return talk.episode(turn.ending or Ending.finished(), 0.0)

"""The other way to read: the whole text in one prompt, as far as it fits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from turnwise.conversation import Conversation
from turnwise.episode import Ending, Episode
from turnwise.method import Method, MethodOptions
from turnwise.policy import AnyPolicy, EndpointPolicy
from turnwise.rollout import Rollout
from turnwise.rows import Row

from apps.evaluators.ruler_hqa.items import gold_answers

TURN_DEADLINE_S = 1800.0
CUT = "\n\n[...]\n\n"
PROMPT = (
    "Here is a long text.\n\n<text>\n{text}\n</text>\n\nAnswer this question from it: {question}\n"
    "Give the answer alone, in as few words as it takes, inside \\boxed{{}}."
)


class FullContextOptions(MethodOptions):
    """The section `[full_context]`."""

    max_characters: int | None = Field(default=None, ge=2)
    """Of the text; half of them at either end are kept. Without it a text that is too long for a
    policy whose tokens are known is cut to what fits, and an endpoint may refuse it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A question on a text."""

    question: str
    context: Any


class FullContext(Method[FullContextOptions, Reading]):
    """The text and the question in one prompt: what a reader in sections is measured against."""

    Options = FullContextOptions
    name = "full_context"

    def task(self, row: Row) -> Reading:
        """See `Method`."""
        gold_answers(row.label, row.where)
        question = row.prompt if isinstance(row.prompt, str) else str(row.prompt[-1]["content"])
        return Reading(question, row.metadata["context"])

    async def run(self, rollout: Rollout[Reading], policy: AnyPolicy) -> Episode:
        """The text's characters that are lost are the metric `lost_characters`."""
        task = rollout.task
        text = await asyncio.to_thread(_whole, task.context)
        kept = text
        if self.options.max_characters is not None:
            kept = head_and_tail(text, self.options.max_characters)
        if not isinstance(policy, EndpointPolicy):
            kept = await asyncio.to_thread(_fitting, kept, task.question, policy)
        prompt = PROMPT.format(text=kept, question=task.question)
        async with Conversation(
            policy, rollout, deadline_s=TURN_DEADLINE_S, specials="escape"
        ) as talk:
            turn = await talk.ask([{"role": "user", "content": prompt}])
            return talk.episode(
                turn.ending or Ending.finished(),
                0.0,
                metrics={"lost_characters": float(max(0, len(text) - len(kept)))},
            )


def head_and_tail(text: str, most: int) -> str:
    """At most `most` characters of a text, half of them from either end, and a mark between."""
    if len(text) <= most:
        return text
    tail = most // 2
    return f"{text[: most - tail]}{CUT}{text[len(text) - tail :]}"


def _whole(context: Any) -> str:
    return context if isinstance(context, str) else "".join(context())


def _fitting(text: str, question: str, policy: Any) -> str:
    """The text, or as much of head and tail as leaves room for a turn."""
    encoder = policy.profile.encoder
    around = len(encoder.encode(PROMPT.format(text=CUT, question=question)))
    room = policy.max_context_tokens - policy.sampling.max_new_tokens - around - 64
    tokens = len(encoder.encode(text))
    kept = text
    while tokens > room and len(kept) > 2:
        # Tokens are not spread evenly over characters: a little less than their share is kept.
        kept = head_and_tail(text, int(len(kept) * max(room, 1) / tokens * 0.98))
        tokens = len(encoder.encode(kept))
    return kept

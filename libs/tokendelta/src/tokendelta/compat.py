"""`get_token_delta` with the contract of slime's function of this name.

The contract, not an endorsement: it encodes sampled text again and trains the separator after the
stop token. `Session` does neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokendelta.rendering import Message


def get_token_delta(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    include_generation_prompt: bool = False,
) -> tuple[list[int], list[int]]:
    """Ids and loss mask that the last message adds to the conversation.

    An assistant message gives its text after the generation prompt with mask 1; with
    `include_generation_prompt` also the prompt, with mask 0. Every other message gives mask 0.
    Raises ValueError where the render of the last message does not extend the one before.
    """
    if not messages:
        raise ValueError("Cannot calculate a token delta for an empty conversation")
    conversation = list(messages)
    current = _render(tokenizer, conversation)
    previous = _render(tokenizer, conversation[:-1]) if len(conversation) > 1 else ""
    last = conversation[-1]
    if last["role"] == "assistant":
        prompt = _render(tokenizer, conversation[:-1], generation=True)
        if not prompt.startswith(previous):
            raise ValueError(
                "Adding the assistant generation prompt rewrote the rendered conversation"
            )
        if not current.startswith(prompt):
            raise ValueError("The assistant response does not extend its generation prompt")
        if not include_generation_prompt:
            ids = _encode(tokenizer, current[len(prompt) :])
            return ids, [1] * len(ids)
        ids = _encode(tokenizer, current[len(previous) :])
        masked = min(len(_encode(tokenizer, prompt[len(previous) :])), len(ids))
        return ids, [0] * masked + [1] * (len(ids) - masked)
    if current.startswith(previous):
        ids = _encode(tokenizer, current[len(previous) :])
        return ids, [0] * len(ids)
    if last["role"] != "user":
        raise ValueError(
            "The chat template rewrote history while calculating a non-user token delta"
        )
    alone = _render(tokenizer, [last])
    if not current.endswith(alone):
        raise ValueError(
            "The latest user message is not a standalone suffix of the rendered conversation"
        )
    ids = _encode(tokenizer, alone)
    return ids, [0] * len(ids)


def _render(tokenizer: Any, messages: list[Message], *, generation: bool = False) -> str:
    text: str = tokenizer.apply_chat_template(
        messages, add_generation_prompt=generation, tokenize=False
    )
    return text


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids

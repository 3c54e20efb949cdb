"""`get_token_delta` written from its contract as plainly as possible: the reference in tests."""

from __future__ import annotations

from typing import Any


def contract(
    tokenizer: Any, messages: list[Any], include_generation_prompt: bool
) -> tuple[list[int], list[int]]:
    if len(messages) == 0:
        raise ValueError("Cannot calculate a token delta for an empty conversation")

    def text(part: list[Any], prompt: bool) -> str:
        rendered: str = tokenizer.apply_chat_template(
            part, add_generation_prompt=prompt, tokenize=False
        )
        return rendered

    def tokens(part: str) -> list[int]:
        ids: list[int] = tokenizer.encode(part, add_special_tokens=False)
        return ids

    whole = text(messages, False)
    before = text(messages[:-1], False)
    role = messages[-1]["role"]
    if role != "assistant":
        if whole[: len(before)] == before:
            added = whole[len(before) :]
        elif role == "user":
            added = text([messages[-1]], False)
            if whole[len(whole) - len(added) :] != added:
                raise ValueError(
                    "The latest user message is not a standalone suffix of the rendered"
                    " conversation"
                )
        else:
            raise ValueError(
                "The chat template rewrote history while calculating a non-user token delta"
            )
        ids = tokens(added)
        return ids, [0 for _ in ids]
    asked = text(messages[:-1], True)
    if asked[: len(before)] != before:
        raise ValueError("Adding the assistant generation prompt rewrote the rendered conversation")
    if whole[: len(asked)] != asked:
        raise ValueError("The assistant response does not extend its generation prompt")
    if not include_generation_prompt:
        ids = tokens(whole[len(asked) :])
        return ids, [1 for _ in ids]
    ids = tokens(whole[len(before) :])
    prompt_size = len(tokens(asked[len(before) :]))
    return ids, [0 if place < prompt_size else 1 for place in range(len(ids))]

"""What was sampled as the client gets it: cut at its stop strings, calls and reasoning read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import toolparse

from turnwise.conversation import Turn
from turnwise.conversation.history import assistant_message
from turnwise.conversation.tokens import read_turn
from turnwise.engine import Completion
from turnwise.gateway.requests import Token
from turnwise.policy import Policy


@dataclass(frozen=True, slots=True)
class Cut:
    """A completion up to the token with which its text holds a stop string.

    Attributes:
        completion: Those tokens, as they were sampled.
        text: What stands before the string; None where none was found.
        stop: The string.
    """

    completion: Completion
    text: str | None = None
    stop: str | None = None


def cut_at_stop(policy: Policy, completion: Completion, stops: Sequence[str]) -> Cut:
    """Ends a completion at the first of these strings, to the token. An engine may have sampled
    on: what stands before does not depend on what would have followed."""

    def found(count: int) -> list[tuple[int, int, str]]:
        text = policy.text(completion.ids[:count])
        return sorted((text.find(one), -len(one), one) for one in stops if one in text)

    if not stops or not found(len(completion.ids)):
        return Cut(completion)
    without, count = 0, len(completion.ids)
    while count - without > 1:
        middle = (without + count) // 2
        if found(middle):
            count = middle
        else:
            without = middle
    place, _, stop = found(count)[0]
    ids, logprobs = completion.ids[:count], completion.logprobs[:count]
    cut = replace(completion, ids=ids, logprobs=logprobs, finish="stop")
    return Cut(cut, policy.text(ids)[:place], stop)


def read(
    policy: Policy,
    toolset: toolparse.ToolSet | None,
    cut: Cut,
    *,
    number: int,
    prompt_tokens: int,
    call_id: Callable[[int], str],
) -> tuple[Turn, dict[str, Any], dict[str, Any]]:
    """The turn, its message as the template is to see it, and the same as the client gets it.

    Args:
        number: Of the turn.
        prompt_tokens: Before it.
        call_id: Of the k-th call.
    """
    most = policy.sampling.max_new_tokens
    turn = read_turn(policy, toolset, cut.completion, number, prompt_tokens, most, shown=cut.text)
    own = assistant_message(turn)
    sent = {**own}
    if turn.finish == "stop" and turn.errors and not turn.calls:
        # What looks like a call and is none stays in the text.
        sent = {"role": "assistant", "content": turn.text if cut.text is None else cut.text}
    if turn.calls and "tool_calls" in own:
        sent["tool_calls"] = [
            {
                "id": call_id(k),
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for k, call in enumerate(turn.calls)
        ]
    return turn, own, sent


def tokens_of(policy: Policy, completion: Completion) -> tuple[Token, ...]:
    """Every token that was sampled, with its log-prob."""
    text_of = policy.profile.text_of
    pairs = zip(completion.ids.tolist(), completion.logprobs.tolist(), strict=True)
    return tuple(Token(text_of([one]), logprob) for one, logprob in pairs)

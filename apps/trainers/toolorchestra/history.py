"""The policy's history of one episode, kept within its context.

1. A prompt leaves `turn_room` tokens for the turn, at most a quarter of the context.
2. Where it would not, the oldest result that is still there gives way to `LEFT_OUT`, then the next.
   What was asked, the experts and the policy's own turns stay as they are; each result that was
   left out is counted. Experts are still shown what was found.
3. The history from then on is the shortened one: a segment of its own, which begins with a prompt
   of text; turns before it stay in the segments that they were sampled in.

Sizes are those of the engine for all that it has seen, and of the tokenizer for what is new: no
message is encoded twice to be counted. An endpoint, whose tokenizer is not at hand, says that a
prompt does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.conversation import Conversation, Overflow, Turn
from turnwise.policy import EndpointPolicy

LEFT_OUT = "(left out)"
AROUND = 16
"""Tokens that a chat template puts around a message, at most."""


class History:
    """Asks the policy turn after turn.

    Attributes:
        shortened: Results that were left out.
    """

    def __init__(
        self, talk: Conversation, opening: Sequence[Mapping[str, Any]], *, turn_room: int
    ) -> None:
        self.shortened = 0
        self._talk = talk
        self._kept: list[dict[str, Any]] = []
        self._results: list[tuple[int, int]] = []
        self._tokens = 0
        policy = talk.policy
        self._limit: int | None = None
        if not isinstance(policy, EndpointPolicy):
            context = policy.max_context_tokens
            self._limit = context - min(turn_room, context // 4)
        for message in opening:
            self._add(message, "prompt")

    def add(self, message: Mapping[str, Any], *, author: str) -> None:
        """Something that stays, for the next prompt: what a customer says."""
        self._tokens += self._count(message["content"])
        self._add(message, author)

    def add_result(self, message: Mapping[str, Any], *, author: str) -> None:
        """What came of a turn, for the next prompt."""
        tokens = self._count(message["content"])
        self._results.append((len(self._kept), tokens))
        self._tokens += tokens
        self._add(message, author)

    async def ask(self) -> Turn | Overflow:
        """The next turn; Overflow where nothing more can be left out.

        Raises:
            BoundaryError: the engine failed.
        """
        turn: Turn | Overflow | None = None
        if self._fits() or not self._results:
            turn = await self._talk.ask()
        while not isinstance(turn, Turn) and self._leave_out():
            if self._fits() or not self._results:
                turn = await self._ask_shortened()
        if turn is None:
            turn = await self._ask_shortened()
        if isinstance(turn, Turn):
            self._kept.append(self._talk.messages[-1])
            self._tokens = turn.prompt_tokens + turn.tokens
        return turn

    def _add(self, message: Mapping[str, Any], author: str) -> None:
        self._talk.add(message, author=author)
        self._kept.append(dict(message))

    def _fits(self) -> bool:
        return self._limit is None or self._tokens <= self._limit

    def _leave_out(self) -> bool:
        if not self._results:
            return False
        place, tokens = self._results.pop(0)
        self._kept[place] = {**self._kept[place], "content": LEFT_OUT}
        self._tokens += self._count(LEFT_OUT) - tokens
        self.shortened += 1
        return True

    async def _ask_shortened(self) -> Turn | Overflow:
        talk = self._talk
        # The trace keeps what was left out of the prompt.
        whole = list(talk.messages)
        messages = self._kept
        if isinstance(talk.policy, EndpointPolicy):
            messages = _on_the_wire(messages)
        try:
            turn = await talk.sync(messages)
        finally:
            sampled = talk.messages[-1:] if len(talk.turns) > _turns_in(whole) else []
            talk.messages[:] = [*whole, *sampled]
        return turn

    def _count(self, content: str) -> int:
        policy = self._talk.policy
        if isinstance(policy, EndpointPolicy):
            return 0
        tokenizer: Any = policy.profile.tokenizer
        return len(tokenizer.encode(content, add_special_tokens=False)) + AROUND


def _turns_in(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(message.get("author") == "policy" for message in messages)


def _on_the_wire(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The history as endpoints take it: every call has an id and one answer, and arguments are
    text. Of a turn's calls those stay that were answered."""
    found: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        after = messages[number + 1] if number + 1 < len(messages) else {}
        call_id = f"call_{number}"
        if message.get("tool_calls") and after.get("role") == "tool":
            function = message["tool_calls"][0]["function"]
            arguments = function["arguments"]
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments)
            call = {"name": function["name"], "arguments": arguments}
            found.append(
                {
                    "role": "assistant",
                    "content": message["content"],
                    "tool_calls": [{"id": call_id, "type": "function", "function": call}],
                }
            )
        elif message["role"] == "tool":
            found.append({**message, "tool_call_id": f"call_{number - 1}"})
        else:
            found.append({"role": message["role"], "content": message["content"]})
    return found

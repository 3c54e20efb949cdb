"""A history of a policy that samples tokens: ids in, ids out, text only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import tokendelta
import toolparse
from numpy.typing import NDArray

from turnwise.conversation.history import (
    Asked,
    CallError,
    Message,
    Overflow,
    Sampled,
    ToolCall,
    Turn,
    assistant_message,
    for_template,
)
from turnwise.engine import Completion
from turnwise.episode import Boundary, BoundaryError, Limit, crossing
from turnwise.policy import Policy
from turnwise.rounds import own_round

Specials = Literal["parity", "escape", "reject"]


class TokenHistory:
    """One `tokendelta.Session`, or a prompt of ids with its turn.

    Attributes:
        session: The record.
        numbers: The conversation's number of each turn of the session.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        tools: Sequence[Mapping[str, Any]],
        toolset: toolparse.ToolSet | None,
        specials: Specials,
        on_rewrite: Literal["keep", "fork", "error"],
    ) -> None:
        self._policy, self._toolset = policy, toolset
        self.session = tokendelta.Session(
            policy.profile,
            tools=list(tools),
            max_tokens=policy.max_context_tokens,
            on_rewrite=on_rewrite,
            specials=specials,
        )
        self.numbers: list[int] = []
        self._ids: NDArray[np.int32] | None = None
        self._prompt: NDArray[np.int32] | None = None

    def extend(self, messages: Sequence[Message]) -> Overflow | None:
        """See `History`."""
        plain = for_template(messages)
        session = self.session
        return self._set(session.append_env(plain) if session.segments else session.start(plain))

    def sync(self, messages: Sequence[Message]) -> Overflow | None:
        """See `History`."""
        return self._set(self.session.sync(for_template(messages)))

    def start_with(self, prompt: NDArray[np.int32]) -> Overflow | None:
        """Begins with a prompt that is ids already: int32[n]."""
        limit = self._policy.max_context_tokens
        if len(prompt) >= limit:
            return Overflow(len(prompt) + 1, limit)
        self._ids = self._prompt = np.array(prompt, dtype=np.int32)
        self._ids.flags.writeable = False
        return None

    async def sample(self, asked: Asked) -> Sampled | Overflow:
        """See `History`."""
        prompt = self._prompt
        assert prompt is not None, "a turn needs a prompt"
        sampling = self._policy.sampling
        limit = min(asked.max_new_tokens or sampling.max_new_tokens, sampling.max_new_tokens)
        params = replace(
            sampling,
            seed=asked.seed,
            max_new_tokens=min(limit, self._policy.max_context_tokens - len(prompt)),
        )
        async with crossing(Boundary.ENGINE, deadline_s=asked.deadline_s):
            completion = await self._policy.engine.generate(
                prompt, params, session_id=asked.session_id
            )
        await own_round()
        async with crossing(Boundary.ENGINE):
            turn = read_turn(
                self._policy, self._toolset, completion, asked.number, len(prompt), limit
            )
            message = assistant_message(turn)
            self._append(completion, turn, message)
        self.numbers.append(asked.number)
        return Sampled(
            turn=turn,
            message=message,
            cached_tokens=completion.cached_tokens,
            # A request that was aborted while it waited says none.
            weight_version=completion.weight_version if len(completion.ids) else None,
        )

    def _set(self, prompt: NDArray[np.int32] | tokendelta.Overflow) -> Overflow | None:
        if isinstance(prompt, tokendelta.Overflow):
            return Overflow(prompt.needed, prompt.limit)
        limit = self._policy.max_context_tokens
        if len(prompt) >= limit:
            return Overflow(len(prompt) + 1, limit)
        self._prompt = prompt
        return None

    def _append(self, completion: Completion, turn: Turn, message: Message) -> None:
        ids, logprobs = completion.ids.tolist(), completion.logprobs.tolist()
        told = message if message.get("tool_calls") else None
        if not ids and completion.finish != "abort":
            raise BoundaryError(
                Boundary.ENGINE, f"no token sampled, and the finish is {completion.finish}"
            )
        finish, session = completion.finish, self.session
        result: object
        if self._ids is not None:
            result = session.ingest(self._ids, ids, logprobs, finish, message=told)
            self._ids = None
        else:
            result = session.append_sampled(ids, logprobs, finish, message=told)
        if isinstance(result, tokendelta.Overflow):
            raise BoundaryError(
                Boundary.ENGINE,
                f"{turn.tokens} tokens sampled where"
                f" {self._policy.max_context_tokens - turn.prompt_tokens} were asked for",
            )


def read_turn(
    policy: Policy,
    toolset: toolparse.ToolSet | None,
    completion: Completion,
    number: int,
    prompt_tokens: int,
    most: int,
    shown: str | None = None,
) -> Turn:
    """What was sampled, as a turn; its calls are read where there is a tool set.

    Args:
        most: Tokens that the turn might have; one that is cut before ran out of context.
        shown: What of the text is read; all of it if None.
    """
    text = policy.text(completion.ids)
    said = text if shown is None else shown
    count = len(completion.ids)
    limit = None
    if completion.finish == "length":
        limit = Limit.TOKENS if most <= count else Limit.CONTEXT
    turn = Turn(
        number=number,
        text=text,
        content=said,
        finish=completion.finish,
        limit=limit,
        prompt_tokens=prompt_tokens,
        tokens=count,
        ids=completion.ids,
    )
    if toolset is None:
        return turn
    parsed = toolparse.parse(said, format=policy.tool_format, tools=toolset)
    return replace(
        turn,
        content=parsed.content,
        reasoning=parsed.reasoning,
        calls=tuple(
            ToolCall(call.name, call.arguments or {})
            for call in parsed.attempts
            if call.name is not None and (call.error is None or call.error.kind == "unknown_tool")
        ),
        errors=tuple(CallError(error.kind, error.message) for error in parsed.errors),
        parsed=parsed,
    )

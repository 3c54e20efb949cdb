"""The contract of a frozen model: one conversation in, one answer out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

Message = Mapping[str, Any]
"""`role` and `content`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a frozen model said.

    Attributes:
        text: The words; they spell no special token of the model (see `plain_text`).
        read_tokens, written_tokens: As counted by the model's side, else estimated.
        finish: Why it ended: `stop`, `length`, or a word of the endpoint; "" if it says none.
    """

    text: str
    read_tokens: int = 0
    written_tokens: int = 0
    finish: str = "stop"


@dataclass(frozen=True, slots=True)
class Act:
    """What a frozen model said or called where it was given tools.

    Attributes:
        text: The words, as of `Answer`; "" where it calls alone.
        calls: Name and arguments of each call in order; arguments as the model's side gave them,
            JSON text that may be none.
        read_tokens, written_tokens, finish: As of `Answer`.
    """

    text: str
    calls: tuple[tuple[str, str], ...] = ()
    read_tokens: int = 0
    written_tokens: int = 0
    finish: str = "stop"


@runtime_checkable
class ActingModel(Protocol):
    """A frozen model that can be given tools.

    Attributes:
        name: Of its role.
    """

    name: str

    async def act(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        *,
        seed: int | None = None,
    ) -> Act:
        """Words or calls in answer to a conversation.

        Args:
            messages: As of `FrozenModel.ask`; with `tool_calls`, whose arguments are JSON text, and
                `tool_call_id`, as OpenAI has them.
            tools: OpenAI function schemas.
            seed: As of `FrozenModel.ask`.

        Raises:
            BoundaryError: there is neither; never for what they say.
        """
        ...


@runtime_checkable
class FrozenModel(Protocol):
    """A model that is asked and not trained, or rules in its place.

    Attributes:
        name: Of its role, such as `executor`.
    """

    name: str

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Answer:
        """The answer to a conversation.

        Args:
            messages: The conversation; text in it that spells a special token is read as text.
            max_tokens: At most this many tokens are written, if fewer than the configuration's.
            seed: Makes the draw reproducible where the model's side can.

        Raises:
            BoundaryError: there is no answer; never for what an answer says.
        """
        ...

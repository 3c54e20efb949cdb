"""How a model is made to play a user: what a benchmark tells it, and how its answers are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What a model's answer says as a user's message.

    Attributes:
        text: Without markers; "" for a bare stop.
        stop: The user ends the conversation.
        out_of_scope: The model says that its part does not provide for this.
    """

    text: str
    stop: bool = False
    out_of_scope: bool = False

    @property
    def empty(self) -> bool:
        return not (self.text or self.stop or self.out_of_scope)


class UserRole(Protocol):
    """The texts and the reading of one benchmark. Pure; the reading raises on no text."""

    @property
    def version(self) -> int:
        """Changes with every word of the texts, and names the users that they make."""
        ...

    @property
    def stop(self) -> str:
        """The marker that ends a conversation."""
        ...

    @property
    def greeting(self) -> str:
        """What the agent is taken to have said before the user's first message."""
        ...

    def rules(self, instruction: str, *, thinks: bool) -> str:
        """The system prompt; `thinks` asks for a labelled thought before each message."""
        ...

    def reminder(self) -> str:
        """Said after an answer whose message can't be told from the thought."""
        ...

    def check(self, instruction: str, dialogue: Sequence[tuple[str, str]], draft: str) -> str:
        """Asks for a verdict on `draft`; `dialogue` is (`agent` or `user`, words) in order."""
        ...

    def reflect(self, draft: str, reason: str) -> str:
        """Asks for a better message than `draft`."""
        ...

    def read(self, answer: str) -> UserMessage:
        """An answer that is the message as it stands."""
        ...

    def read_labelled(self, answer: str) -> UserMessage:
        """An answer of a labelled thought and a labelled message: the message alone."""
        ...

    def read_verdict(self, answer: str) -> tuple[bool, str] | None:
        """Whether a draft is right, and the reason; None without a verdict."""
        ...

    def heard(self, agent_text: object) -> str:
        """What the model is told that the agent said: nothing in it can speak for the user."""
        ...

    def puts_stop_off(self, heard: str, message: UserMessage) -> bool:
        """Whether a stop comes one message later, since the agent waits for the words before it."""
        ...

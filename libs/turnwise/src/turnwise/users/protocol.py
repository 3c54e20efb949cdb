"""What an episode loop asks of a user simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from turnwise.episode import Boundary, BoundaryError

MAX_MESSAGE_CHARACTERS = 8_000
"""A longer message is no person's: it would fill the policy's context, and the policy be blamed."""


@dataclass(frozen=True, slots=True)
class UserReply:
    """The user's answer.

    Attributes:
        text: The words, with the benchmark's marker where the user ends the conversation.
        done: The user has ended the conversation.
    """

    text: str
    done: bool = False


Exchange = tuple[str | None, UserReply]
"""What the agent said, None for silence, and the user's answer."""


class Scenario(Protocol):
    """What a user played by a model or a person needs to know of a task."""

    @property
    def id(self) -> str:
        """For people and files."""
        ...

    @property
    def instruction(self) -> str:
        """Who the user is and what the user wants. Never shown to the agent."""
        ...


class User(Protocol):
    """A simulated user of one episode at a time.

    A failure of the simulator raises; the episode loop puts it down to the user, never to the
    policy. Nothing that the agent says may raise.
    """

    @property
    def name(self) -> str:
        """For reports: which simulator, of which version, with which options."""
        ...

    async def reset(self, scenario: Any) -> str:
        """Starts a conversation about a benchmark's task and returns the user's first message.

        A user that works for every benchmark takes a `Scenario`.
        """
        ...

    async def reply(self, agent_text: object) -> UserReply:
        """Answers what the agent said; anything that is not a string counts as silence."""
        ...


@runtime_checkable
class ResumableUser(User, Protocol):
    """A user that can go on with a conversation that was led elsewhere."""

    async def resume(self, scenario: Any, opening: str, exchanges: Sequence[Exchange]) -> None:
        """
        Args:
            scenario: As of `reset`.
            opening: The user's first message.
            exchanges: The rest of the conversation, in order.
        """
        ...


def check_message(text: object) -> str:
    """A user's message that an agent may be shown.

    Raises:
        BoundaryError: at `Boundary.USER`: it is no text, or too long for a person.
    """
    if not isinstance(text, str):
        raise BoundaryError(Boundary.USER, f"the user gave {type(text).__name__}, not text")
    if len(text) > MAX_MESSAGE_CHARACTERS:
        raise BoundaryError(
            Boundary.USER,
            f"a message of {len(text)} characters, {MAX_MESSAGE_CHARACTERS} are the most: "
            f"{text[:80]!r}",
        )
    return text

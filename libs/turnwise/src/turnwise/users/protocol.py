"""What an episode loop asks of a user simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from taubench.task import Task


@dataclass(frozen=True, slots=True)
class UserReply:
    """The user's answer.

    Attributes:
        text: The words; `###STOP###` where the user ends the conversation.
        done: The user has ended the conversation.
    """

    text: str
    done: bool = False


class User(Protocol):
    """A simulated customer of one episode at a time.

    A failure of the simulator raises; the episode loop puts it down to the user, never to the
    policy. Nothing that the agent says may raise.
    """

    @property
    def name(self) -> str:
        """For reports: which simulator, of which version, with which options."""
        ...

    async def reset(self, task: Task) -> str:
        """Starts a conversation about `task` and returns the customer's first message."""
        ...

    async def reply(self, agent_text: object) -> UserReply:
        """Answers what the agent said; anything that is not a string counts as silence."""
        ...

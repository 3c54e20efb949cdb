"""A user of an interrupted episode that goes on: its recorded messages first, then its own.

A `ResumableUser` is told the conversation; any other can't go on.
"""

from __future__ import annotations

from typing import Any

from turnwise.episode import Boundary, BoundaryError
from turnwise.replay import Replay
from turnwise.users.protocol import ResumableUser, User, UserReply

NAME = "user"
"""Of the calls in the record."""


class ReplayedUser:
    """`user` for one episode with a record. Implements `User`."""

    def __init__(self, user: User, replay: Replay) -> None:
        self._user, self._replay = user, replay
        self._kept = replay.recorded(NAME)
        self._resumed = not self._kept
        self._task: Any = None

    @property
    def name(self) -> str:
        return self._user.name

    async def reset(self, task: Any) -> str:
        """See `User`. Raises BoundaryError as `Replay.call` does."""
        self._task = task

        async def ask() -> str:
            return await self._user.reset(task)

        opening: str = await self._replay.call(NAME, None, ask)
        return opening

    async def reply(self, agent_text: object) -> UserReply:
        """See `User`.

        Raises:
            BoundaryError: at `Boundary.ENVIRONMENT`: the agent says something else than recorded;
                at `Boundary.USER`: this user can't go on.
        """
        heard = agent_text if isinstance(agent_text, str) else None

        async def ask() -> dict[str, Any]:
            if not self._resumed:
                self._resumed = True
                await self._resume()
            answer = await self._user.reply(agent_text)
            return {"text": answer.text, "done": answer.done}

        said = await self._replay.call(NAME, {"heard": heard}, ask)
        return UserReply(said["text"], said["done"])

    async def _resume(self) -> None:
        if not isinstance(self._user, ResumableUser):
            raise BoundaryError(
                Boundary.USER,
                f"{self._user.name} has no resume: it can't go on with a conversation",
            )
        opening, *replies = self._kept
        exchanges = [(one["asked"]["heard"], UserReply(**one["answer"])) for one in replies]
        await self._user.resume(self._task, opening["answer"], exchanges)

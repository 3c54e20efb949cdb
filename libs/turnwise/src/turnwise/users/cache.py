"""Replies recorded and replayed, so that a run can be repeated without its model and its cost.

    cache = ReplyCache(Path("replies.jsonl"))
    user = CachedUser(make_user, cache, name=NAME)      # asks what is not recorded, and records it
    user = CachedUser(None, cache, name=NAME)           # replays alone; CacheMiss where it can't

A reply is found by the user's name (strategy, version of the prompts, model, temperature), the
task and its instruction, and every word said so far. Episodes of a task that say the same hear the
same: the first to ask records it and the others wait for that. With a cache the members of a group
therefore differ by the policy alone.

One JSON line a reply: `key`, `user`, `task`, `turn` (0 is the first message), `heard`, `text`,
`done`. Of two lines with one key the first counts. One process writes to a file at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError
from turnwise.run.jsonl import append_row, plain, read_rows
from turnwise.users.protocol import Exchange, ResumableUser, Scenario, User, UserReply


class CacheMiss(BoundaryError):
    """What was said is not recorded, and only recorded replies may be used."""


GRACE_S = 10.0
"""For replies that were asked for when a run ends."""


class ReplyCache:
    """The recorded replies of one file, all in memory.

    Attributes:
        path: The file.
        hits, misses: Replies found and not found so far.
    """

    def __init__(self, path: Path, *, must_exist: bool = False) -> None:
        """
        Args:
            path: The file; made with the first reply.
            must_exist: There is nothing to replay without it.

        Raises:
            ConfigError: the file is missing, or naming file and line of what is no recorded reply.
        """
        if must_exist and not path.is_file():
            raise ConfigError(f"user-cache: {path} does not exist: there is nothing to replay")
        self.path = path
        self.hits = 0
        self.misses = 0
        self._asking: set[asyncio.Future[UserReply]] = set()
        self._replies: dict[str, UserReply] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        for number, row in enumerate(read_rows(path), start=1):
            key, text, done = row.get("key"), row.get("text"), row.get("done")
            if not (isinstance(key, str) and isinstance(text, str) and isinstance(done, bool)):
                raise ConfigError(
                    f"{path}:{number}: not a recorded reply (key, text and done are needed); is "
                    "this another file?"
                )
            self._replies.setdefault(key, UserReply(text, done))

    def __len__(self) -> int:
        return len(self._replies)

    async def get(
        self, row: dict[str, object], key: str, ask: Callable[[], Awaitable[UserReply]]
    ) -> UserReply:
        """The recorded reply, else what `ask` gives, which is then on disk; once per key.

        What was asked for is recorded even where nobody waits for it any more: it may have been
        paid for. `close` waits for it.

        Args:
            row: What else the line says, for people.
            key: Names the reply.
            ask: Called if it is not recorded; what it raises passes through and records nothing.

        Raises:
            RunError: the line can't be written.
        """
        asking = asyncio.ensure_future(self._get(row, key, ask))
        self._asking.add(asking)
        asking.add_done_callback(self._asked)
        return await asyncio.shield(asking)

    async def close(self) -> None:
        """Waits for replies that nobody waits for, `GRACE_S` seconds at most."""
        if self._asking:
            _, late = await asyncio.wait(self._asking, timeout=GRACE_S)
            for asking in late:
                asking.cancel()

    def _asked(self, asking: asyncio.Future[UserReply]) -> None:
        self._asking.discard(asking)
        if not asking.cancelled():
            # Whoever waited has it; of one that nobody waited for no more is said.
            asking.exception()

    async def _get(
        self, row: dict[str, object], key: str, ask: Callable[[], Awaitable[UserReply]]
    ) -> UserReply:
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if key in self._replies:
                self.hits += 1
                return self._replies[key]
            self.misses += 1
            asked = await ask()
            reply = UserReply(plain(asked.text), asked.done)
            append_row(self.path, {"key": key, **row, "text": reply.text, "done": reply.done})
            self._replies[key] = reply
            return reply


class CachedUser:
    """A user of one episode whose replies come from a cache first. Implements `ResumableUser`."""

    def __init__(self, make: Callable[[], User] | None, cache: ReplyCache, *, name: str) -> None:
        """
        Args:
            make: Makes the user who is asked; None replays alone.
            cache: Shared by all episodes.
            name: Of the user who was or is asked.
        """
        self.name = name
        self._make = make
        self._cache = cache
        self._inner: User | None = None
        self._told = -1
        self._scenario: Scenario | None = None
        self._opening: str | None = None
        self._exchanges: list[Exchange] = []

    async def reset(self, scenario: Scenario) -> str:
        """See `User`.

        Raises:
            CacheMiss: nothing is recorded for the task, and nobody may be asked.
            RunError: the recording can't be written.
        """
        self._scenario, self._opening, self._exchanges = scenario, None, []
        self._inner, self._told = None, -1

        async def ask() -> UserReply:
            self._inner = self._maker(None)()
            text = await self._inner.reset(scenario)
            self._told = 0
            return UserReply(text)

        self._opening = (await self._cache.get(*self._place(None), ask)).text
        return self._opening

    async def reply(self, agent_text: object) -> UserReply:
        """See `User`.

        Raises:
            RuntimeError: `reset` was not called.
            CacheMiss, RunError: as `reset`.
        """
        if self._scenario is None or self._opening is None:
            raise RuntimeError("reset() must come before reply()")
        heard = agent_text if isinstance(agent_text, str) else None

        async def ask() -> UserReply:
            inner = await self._caught_up(heard)
            answer = await inner.reply(agent_text)
            self._told += 1
            return answer

        answer = await self._cache.get(*self._place(heard), ask)
        self._exchanges.append((heard, answer))
        return answer

    async def resume(self, scenario: Scenario, opening: str, exchanges: Sequence[Exchange]) -> None:
        """Goes on with a conversation that was led elsewhere; asks nothing."""
        self._scenario, self._opening, self._exchanges = scenario, opening, list(exchanges)
        self._inner, self._told = None, -1

    async def _caught_up(self, heard: str | None) -> User:
        """The user to ask, told every message that came from the cache."""
        assert self._scenario is not None and self._opening is not None
        if self._inner is None or self._told != len(self._exchanges):
            self._inner = self._maker(heard)()
            if not isinstance(self._inner, ResumableUser):
                raise BoundaryError(
                    Boundary.USER, f"{self.name} has no resume: it can't go on from a cache"
                )
            await self._inner.resume(self._scenario, self._opening, self._exchanges)
            self._told = len(self._exchanges)
        return self._inner

    def _maker(self, heard: str | None) -> Callable[[], User]:
        if self._make is None:
            assert self._scenario is not None
            said = "the first message" if self._opening is None else f"the agent's {heard!r:.120}"
            raise CacheMiss(
                Boundary.USER,
                f"{self._cache.path}: no reply of {self.name} to {said} in {self._scenario.id} "
                f"(message {self._turn}; {len(self._cache)} are recorded); record it first, or "
                "leave user-replay out",
            )
        return self._make

    @property
    def _turn(self) -> int:
        return 0 if self._opening is None else len(self._exchanges) + 1

    def _place(self, heard: str | None) -> tuple[dict[str, object], str]:
        assert self._scenario is not None
        said = [[heard, answer.text] for heard, answer in self._exchanges]
        now = [] if self._opening is None else [self._opening, said, heard]
        place = [self.name, self._scenario.id, self._scenario.instruction, *now]
        key = hashlib.sha256(json.dumps(place).encode()).hexdigest()
        row = {"user": self.name, "task": self._scenario.id, "turn": self._turn, "heard": heard}
        return row, key

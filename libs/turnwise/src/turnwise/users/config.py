"""From options to the users of a run.

users = UserMaker(UserConfig(strategy="llm", model=MODEL, base_url=URL, key_env=NAME), role=ROLE)
await users.check()
user = users()                              # one for each episode
await users.close()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from turnwise.config import nearest
from turnwise.models import ChatModel, UserModelConfig
from turnwise.models.client import CHECK_DEADLINE_S
from turnwise.models.config import ChatConfig
from turnwise.spend import Spend
from turnwise.users.cache import CachedUser, ReplyCache
from turnwise.users.human import HumanUser, Terminal
from turnwise.users.model import MODEL_USERS, user_name
from turnwise.users.protocol import User
from turnwise.users.role import UserRole

GEMINI_URL = "https://generativelanguage.googleapis.com/v1beta/openai"
GEMINI_KEY_ENV = "GEMINI_API_KEY"


class UserConfig(ChatConfig):
    """Who plays the user. A benchmark with users of its own adds their strategies."""

    own_strategies: ClassVar[tuple[str, ...]] = ()
    """Names of users without a model that the benchmark has."""

    strategy: str = "llm"
    """`llm`, `react` (thinks first), `verify` (a second request checks each message), `reflection`
    (a wrong message is thought over) or `human` (this terminal)."""
    base_url: str = GEMINI_URL
    """OpenAI-compatible endpoint, up to and without `/chat/completions`."""
    model: str = Field(default="gemini-3.5-flash-lite", min_length=1)
    """The model, by its endpoint's name."""
    key_env: str = GEMINI_KEY_ENV
    """Environment variable that holds the endpoint's key, kept nowhere; "" sends none."""
    sglang: str = ""
    """A model of slime's --sglang-config that plays the user, served beside the policy; its
    endpoint is known when the run has started, so base-url, model and key-env are left out."""
    user_cache: Path | None = None
    """JSONL file of replies: recorded ones are replayed, others asked for and recorded."""
    user_replay: bool = False
    """Use recorded replies alone: no request is made, and one that is missing loses its episode."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        known = (*MODEL_USERS, "human", *self.own_strategies)
        if self.strategy not in known:
            hint = nearest(self.strategy, known)
            raise ValueError(f"strategy: unknown {self.strategy!r}; {hint}")
        if self.sglang:
            self._check_served()
        host = urlsplit(self.base_url).hostname
        if self.key_env == GEMINI_KEY_ENV and host != urlsplit(GEMINI_URL).hostname:
            raise ValueError(
                f"key-env: {GEMINI_KEY_ENV} would be sent to {host}; name the variable that holds "
                'the key of that endpoint, or "" for none'
            )
        if self.user_replay and self.user_cache is None:
            raise ValueError("user-replay: needs user-cache, the file to replay")
        if self.user_cache is not None and self.strategy not in MODEL_USERS:
            raise ValueError(f"user-cache: {self.strategy} asks no model, there is nothing to keep")
        return self

    def _check_served(self) -> None:
        for name in ("base_url", "model", "key_env"):
            if getattr(self, name) != type(self).model_fields[name].default:
                dashed = name.replace("_", "-")
                raise ValueError(f"sglang: slime serves the user; leave {dashed} out")
        if self.strategy not in MODEL_USERS:
            raise ValueError(f"sglang: {self.strategy} asks no model")

    def served_at(self, server: Callable[[str], str]) -> Self:
        """The same user, with the endpoint that `server` gives for `sglang`."""
        if not self.sglang:
            return self
        there = {
            "base_url": server(self.sglang),
            "model": self.sglang,
            "key_env": "",
            "sglang": "",
        }
        return self.model_copy(update=there)


class UserMaker:
    """Makes the user of each episode; they share one model, one limiter and one cache.

    Attributes:
        config: As given.
        name: Of every user.
        model: Plays the users; None if none is asked.
        cache: Recorded replies; None without.
    """

    def __init__(
        self,
        config: UserConfig,
        *,
        role: UserRole,
        own: Mapping[str, Callable[[], User]] | None = None,
        environ: Mapping[str, str] = os.environ,
        terminal: Terminal | None = None,
    ) -> None:
        """
        Args:
            config: Who plays the user.
            role: How a model is made to play one.
            own: The benchmark's users without a model, by their strategy.
            environ: Where the key is.
            terminal: Where the person sits; this process's without it.

        Raises:
            ConfigError: the key's variable is not set, or the cache's file is another kind of
                file or missing where it is to be replayed.
        """
        self.config = config
        self.model: ChatModel | None = None
        self.cache: ReplyCache | None = None
        self._role = role
        self._own = dict(own or {})
        self._terminal = terminal
        asks_model = config.strategy in MODEL_USERS
        if config.strategy == "human" and terminal is None:
            self._terminal = Terminal()
        if config.user_cache is not None:
            self.cache = ReplyCache(config.user_cache, must_exist=config.user_replay)
        if asks_model and not config.user_replay:
            shared = {name: getattr(config, name) for name in ChatConfig.model_fields}
            self.model = ChatModel("user", UserModelConfig(**shared), environ=environ)
        named = user_name(config.strategy, role.version, config.model, config.temperature)
        self.name = named if asks_model else self._uncached().name

    def __call__(self) -> User:
        """A user for one episode."""
        if self.cache is not None:
            make = self._uncached if self.model is not None else None
            return CachedUser(make, self.cache, name=self.name)
        return self._uncached()

    @property
    def spend(self) -> Spend:
        """What the users cost so far."""
        return self.model.spend if self.model is not None else Spend()

    async def check(self, deadline_s: float = CHECK_DEADLINE_S) -> float:
        """Asks whether the model's endpoint is there; seconds until it answered, 0 without one.

        Raises:
            BoundaryError: it does not answer.
        """
        return 0.0 if self.model is None else await self.model.check(deadline_s)

    def metrics(self) -> dict[str, float]:
        """`user/...`: requests, tokens, US dollars, repeats, rejections, cache hits and misses."""
        row = self.model.metrics() if self.model is not None else self.spend.row()
        if self.cache is not None:
            row["cache_hits"] = float(self.cache.hits)
            row["cache_misses"] = float(self.cache.misses)
        return {f"user/{name}": value for name, value in row.items()}

    async def close(self) -> None:
        """Waits for what is recorded and closes the connections of this event loop."""
        if self.cache is not None:
            await self.cache.close()
        if self.model is not None:
            await self.model.close()

    def _uncached(self) -> User:
        strategy = self.config.strategy
        if strategy in self._own:
            return self._own[strategy]()
        if strategy == "human":
            assert self._terminal is not None
            return HumanUser(self._terminal, stop=self._role.stop)
        assert self.model is not None
        return MODEL_USERS[strategy](
            self.model,
            self._role,
            name=self.name,
            deadline_s=self.config.deadline_s,
            max_repeats=self.config.max_empty_replies,
        )

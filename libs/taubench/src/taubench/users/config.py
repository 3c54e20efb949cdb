"""From options to the users of a tau-bench run: those of `turnwise.users`, and the offline one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, Literal

import turnwise.users
from turnwise.users import Terminal

from taubench.users.offline import OfflineUser
from taubench.users.role import TauRole

UserStrategy = Literal["llm", "react", "verify", "reflection", "human", "offline"]


class UserConfig(turnwise.users.UserConfig):
    """Who plays the user."""

    own_strategies: ClassVar[tuple[str, ...]] = ("offline",)

    strategy: UserStrategy = "llm"
    """`llm`, `react` (thinks first), `verify` (a second request checks each message), `reflection`
    (a wrong message is thought over), `human` (this terminal) or `offline` (no model)."""


class UserMaker(turnwise.users.UserMaker):
    """Makes the user of each episode; see `turnwise.users.UserMaker`."""

    def __init__(
        self,
        config: UserConfig,
        *,
        environ: Mapping[str, str] = os.environ,
        terminal: Terminal | None = None,
    ) -> None:
        """
        Args:
            config: Who plays the user.
            environ: Where the key is.
            terminal: Where the person sits; this process's without it.

        Raises:
            ConfigError: the key's variable is not set, or the cache's file is another kind of
                file or missing where it is to be replayed.
        """
        super().__init__(
            config,
            role=TauRole(),
            own={"offline": OfflineUser},
            environ=environ,
            terminal=terminal,
        )

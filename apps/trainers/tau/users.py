"""Who plays the user: from options to users that answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from taubench.users import UserConfig, UserMaker
from turnwise import users
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.episode import BoundaryError
from turnwise.method import Services

ConfigT = TypeVar("ConfigT", bound=users.UserConfig)
MakerT = TypeVar("MakerT", bound=users.UserMaker)


def make_users(config: UserConfig, services: Services) -> UserMaker:
    """
    Raises:
        ConfigError: they can't be had here.
    """
    return made_here(config, services, lambda found: UserMaker(found, environ=services.environ))


def made_here(config: ConfigT, services: Services, make: Callable[[ConfigT], MakerT]) -> MakerT:
    """What `make` makes of the users where they are served here.

    Raises:
        ConfigError: they can't be had here.
    """
    if config.strategy == "human" and services.server is not None:
        raise ConfigError(
            "user.strategy: nobody sits at the terminals of a cluster's nodes; use llm or offline"
        )
    if config.sglang and services.server is None:
        raise ConfigError("user.sglang: is for runs through slime, which serves it")
    if services.server is not None:
        try:
            config = config.served_at(services.server)
        except ConfigError as error:
            raise ConfigError(f"user.sglang: {error}") from None
    try:
        return make(config)
    except ConfigError as error:
        raise ConfigError(f"user.{error}") from None


async def ask_users(maker: users.UserMaker, deadline_s: float) -> float:
    """Finds out whether their endpoint answers, if they have one.

    Returns:
        Seconds until it answered; 0 without one.

    Raises:
        PreflightError: it does not.
    """
    try:
        return await maker.check(deadline_s)
    except BoundaryError as error:
        raise PreflightError(f"user: no answer: {error}") from None

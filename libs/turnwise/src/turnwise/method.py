"""A method by its name: the agent loop with its reward that a backend or an evaluator plays.

`tau` and `agentflow` are built in; any other is named by its import path,
`package.module:function`, a function of the options that returns a `Method`. Built-in ones are
imported when they are asked for: what plays episodes does not depend on them.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.config import Config, ConfigError
from turnwise.episode import Episode
from turnwise.policy import Policy
from turnwise.users import User

MakeUser = Callable[[], User]

BUILT_IN = {
    "tau": "taubench.method:make_method",
    "agentflow": "apps.trainers.agentflow.method:make_method",
}
OPTIONS = {
    "tau": "taubench.method:TauOptions",
    "agentflow": "apps.trainers.agentflow.config:AgentFlowOptions",
}
"""The `Config` of each built-in method's options, by which a run's file is checked."""


def unchanged(make: MakeUser) -> MakeUser:
    """The customers as they are."""
    return make


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One episode to play.

    Attributes:
        prompt: `Sample.prompt` as slime read it from the row (`--input-key`), or an evaluator's
            own of the same kind.
        label: `Sample.label`.
        metadata: `Sample.metadata`. Read only.
        policy: Its engine is bound to this episode.
        rollout_id: Unique within the process.
        group_id: Shared by the rollouts of one prompt.
        seed: Fixes every draw of the episode.
        wrap_user: Put around the maker of the customer, so that the replies can be kept.
    """

    prompt: object
    label: object
    metadata: Mapping[str, Any]
    policy: Policy
    rollout_id: str
    group_id: str
    seed: int
    wrap_user: Callable[[MakeUser], MakeUser] = unchanged


class Method(ABC):
    """An agent loop with its reward, the same on every backend.

    Attributes:
        fans_out: Whether an episode may have several segments even where no template rewrites
            history.
    """

    fans_out: bool = False

    @abstractmethod
    async def run(self, job: Job) -> Episode:
        """Plays one episode; failures become its ending.

        Raises:
            ConfigError: the row names what does not exist.
            StopRun: no further episode could be played.
        """

    def connect(self, server: Callable[[str], str]) -> None:
        """Called once before the first episode where slime serves frozen models.

        Args:
            server: The URL, up to and with `/v1`, of a model of `--sglang-config` by its name;
                raises ConfigError if there is none.
        """
        return None

    def metrics(self) -> Mapping[str, float]:
        """Numbers of its services, totals since the start, for the trackers."""
        return {}

    async def close(self) -> None:
        """Closes what it keeps open for the running event loop."""
        return None


def make_method(name: str, options: Mapping[str, Any]) -> Method:
    """The method `name`, a built-in one or an import path.

    Raises:
        ConfigError: there is no such method, or its options are wrong.
    """
    method = _load(BUILT_IN.get(name, name))(options)
    if not isinstance(method, Method):
        raise ConfigError(f"method: {name} gives {type(method).__name__}, not a turnwise Method")
    return method


def options_class(name: str) -> type[Config]:
    """What the options of a built-in method are checked by.

    Raises:
        ConfigError: it is not built in, or this installation lacks it.
    """
    if name not in OPTIONS:
        raise ConfigError(f"method: {name!r} is none of {', '.join(OPTIONS)}")
    found: type[Config] = _load(OPTIONS[name])
    return found


def _load(path: str) -> Any:
    module, colon, attribute = path.partition(":")
    if not colon:
        raise ConfigError(
            f"method: {path!r} is neither one of {', '.join(BUILT_IN)} nor an import path "
            "package.module:function"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"method: {path}: {error}") from error

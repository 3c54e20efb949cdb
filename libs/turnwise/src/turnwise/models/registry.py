"""Frozen models by name, from configuration."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from turnwise.config import ConfigError
from turnwise.episode import BoundaryError, DeadlineExceeded
from turnwise.limiter import Limiter
from turnwise.models.chat import ChatModel
from turnwise.models.config import ModelConfig, check_url
from turnwise.models.engine import EngineModel
from turnwise.models.protocol import FrozenModel

if TYPE_CHECKING:
    from turnwise.policy import Policy

_LIMITS = ("concurrency", "requests_per_minute", "tokens_per_minute")
_TAILS = ("/chat/completions", "/generate")


class Models(Mapping[str, FrozenModel]):
    """Frozen models by the name of their role."""

    def __init__(self, models: Mapping[str, FrozenModel]) -> None:
        self._models = dict(models)

    def __getitem__(self, name: str) -> FrozenModel:
        try:
            return self._models[name]
        except KeyError:
            known = ", ".join(sorted(self._models)) or "none"
            raise KeyError(f"no frozen model {name!r}; there are: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    async def check(self, deadline_s: float = 60.0) -> None:
        """Asks every model that can be checked for a word, all at once.

        Raises:
            BoundaryError: naming each that gave no answer, and why; at the boundary of the first.
        """

        async def failure(name: str, model: Any) -> tuple[str, BoundaryError] | None:
            check = getattr(model, "check", None)
            try:
                if check is not None:
                    await check(deadline_s)
            except BoundaryError as error:
                return name, error
            return None

        found = await asyncio.gather(*(failure(*item) for item in self._models.items()))
        failures = [pair for pair in found if pair is not None]
        if failures:
            lines = "; ".join(f"{name}: {error}" for name, error in failures)
            late = all(isinstance(error, DeadlineExceeded) for _, error in failures)
            kind = DeadlineExceeded if late else BoundaryError
            raise kind(
                failures[0][1].boundary,
                f"{len(failures)} of {len(self)} frozen models do not answer: {lines}",
            )

    def metrics(self) -> dict[str, float]:
        """`model/NAME/...`: requests, tokens read and written, US dollars, failures, ..."""
        return {
            f"model/{name}/{key}": value
            for name, model in self._models.items()
            for key, value in getattr(model, "metrics", dict)().items()
        }

    async def close(self) -> None:
        """Closes the connections of this event loop."""
        for model in self._models.values():
            close = getattr(model, "close", None)
            if close is not None:
                await close()


def make_models(
    config: Mapping[str, ModelConfig],
    *,
    sglang: Callable[[str], str] | None = None,
    policy: Policy | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Models:
    """The models of a configuration by name. Asks nothing yet; see `Models.check`.

    Args:
        config: By the name of the role.
        sglang: The router's URL of a model of `--sglang-config`, as slime's `get_model_url` gives
            it for any path.
        policy: The engine of this process.
        environ: Where keys are.

    Models of one URL share a limiter, so that their limits must be the same.

    Raises:
        ConfigError: naming the model and key.
    """
    models: dict[str, FrozenModel] = {}
    endpoints: dict[str, tuple[str, ModelConfig, Limiter]] = {}
    for name, one in config.items():
        if one.local:
            if policy is None:
                raise ConfigError(f"{name}.local: this backend has no engine in its process")
            models[name] = EngineModel(name, one, policy)
            continue
        url = _router(name, one.sglang, sglang) if one.sglang else one.base_url.rstrip("/")
        first, same, limiter = endpoints.setdefault(url, (name, one, _limiter(one)))
        for field in _LIMITS:
            if getattr(same, field) != getattr(one, field):
                key = field.replace("_", "-")
                raise ConfigError(
                    f"{name}.{key}: found {getattr(one, field)}, but {first} has "
                    f"{getattr(same, field)} and asks the same URL; give both the same"
                )
        try:
            models[name] = ChatModel(name, one, base_url=url, limiter=limiter, environ=environ)
        except ConfigError as error:
            raise ConfigError(f"{name}.{error}") from None
    return Models(models)


def _limiter(config: ModelConfig) -> Limiter:
    return Limiter(**{name: getattr(config, name) for name in _LIMITS})


def _router(name: str, group: str, resolve: Callable[[str], str] | None) -> str:
    if resolve is None:
        raise ConfigError(f"{name}.sglang: this backend starts no SGLang models; give base-url")
    try:
        url = resolve(group).rstrip("/")
    except (LookupError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name}.sglang: no model {group!r} in --sglang-config: {error}"
        ) from None
    for tail in _TAILS:
        url = url.removesuffix(tail)
    try:
        check_url(url)
    except ValueError as error:
        raise ConfigError(f"{name}.sglang: the router of {group!r}: {error}") from None
    return url if urlsplit(url).path.strip("/") else f"{url}/v1"

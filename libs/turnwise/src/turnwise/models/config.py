"""Where frozen models are and how they are asked: what a person writes about each."""

from __future__ import annotations

import re
from typing import ClassVar
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from turnwise.config import Config, ConfigError
from turnwise.episode import Boundary
from turnwise.models.answer import MAX_TOKENS

MAX_SECONDS = 1e6
"""Eleven days; a longer wait is none that ends."""
_LATER = "http://later.invalid/v1"


class ChatConfig(Config):
    """One model of one endpoint."""

    base_url: str
    """Up to and without `/chat/completions`, such as `http://HOST:30000/v1`."""
    model: str = Field(min_length=1)
    """The model, by its endpoint's name."""
    key_env: str = ""
    """Environment variable that holds the key; without it no key is sent."""
    temperature: float | None = Field(default=1.0, ge=0, le=2)
    """Sampling temperature; none leaves it to the endpoint."""
    max_tokens: int = Field(default=2048, ge=0, le=MAX_TOKENS)
    """At most this many tokens a reply, thinking included; 0 leaves it to the endpoint."""
    deadline_s: float = Field(default=110.0, gt=0, le=MAX_SECONDS)
    """Seconds for a reply, with every repeat and wait."""
    attempt_s: float = Field(default=60.0, gt=0, le=MAX_SECONDS)
    """Seconds for one request."""
    patience_s: float = Field(default=30.0, ge=0, le=MAX_SECONDS)
    """Seconds that nobody may listen at the endpoint, after which it is given up."""
    max_empty_replies: int = Field(default=2, ge=0, le=1000)
    """How often an answer that can't be used is asked for again."""
    backoff_s: float = Field(default=0.5, gt=0, le=MAX_SECONDS)
    """Mean seconds before the first repeat of a request; doubles each time."""
    concurrency: int = Field(default=64, ge=1, le=1_000_000)
    """Requests under way at most; fewer while the endpoint answers 429."""
    requests_per_minute: float | None = Field(default=None, gt=0, le=1e9)
    """Requests in any 60 seconds at most."""
    tokens_per_minute: float | None = Field(default=None, gt=0, le=1e12)
    """Tokens read and written in any 60 seconds at most."""
    read_price: float = Field(default=0.0, ge=0, le=1e9)
    """US dollars per million tokens read."""
    write_price: float = Field(default=0.0, ge=0, le=1e9)
    """US dollars per million tokens written."""
    spend_cap_usd: float | None = Field(default=None, gt=0, le=1e12)
    """Nothing is sent that might cost more than this in all."""

    # On the whole, since the error of a single field shows what was given, which may be a secret.
    @model_validator(mode="after")
    def _is_sound(self) -> ChatConfig:
        check_url(self.base_url)
        if self.key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_env):
            raise ValueError("key-env: must be the name of a variable, not the key itself")
        if self.spend_cap_usd is not None and not (self.read_price or self.write_price):
            raise ValueError("spend-cap-usd: needs read-price and write-price")
        return self


def check_url(text: str) -> None:
    """Raises ValueError, without showing it, if `text` is no URL or may hold a secret."""
    try:
        url = urlsplit(text)
    except ValueError:
        url = urlsplit("")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("base-url: must be a URL such as http://HOST:30000/v1")
    if "@" in url.netloc or url.query or url.fragment:
        raise ValueError(
            "base-url: must hold no user, query or fragment; a key goes into the environment"
        )


class ModelConfig(ChatConfig):
    """One frozen model, at exactly one of `base-url`, `sglang` and `local`.

    The fields of `ChatConfig` hold for all three, as far as they mean something there: a local
    engine needs no key, and sends nothing again.
    """

    boundary: ClassVar[Boundary] = Boundary.ENGINE
    """Where an episode is lost if the model fails."""

    base_url: str = ""
    """OpenAI-compatible endpoint, up to and without `/chat/completions`."""
    sglang: str = ""
    """Name of a model in slime's `--sglang-config`, whose router is asked."""
    local: bool = False
    """Ask the engine and the weights of this process."""
    model: str = ""
    """The model, by its endpoint's name; that of the SGLang model if left out."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus mass; 1 switches it off."""

    @model_validator(mode="after")
    def _is_sound(self) -> ModelConfig:
        places = [bool(self.base_url), bool(self.sglang), self.local]
        if sum(places) != 1:
            found = [
                name
                for name, given in zip(("base-url", "sglang", "local"), places, strict=True)
                if given
            ]
            raise ValueError(
                "give exactly one of base-url, sglang and local, found "
                f"{' and '.join(found) or 'none'}"
            )
        if self.base_url and not self.model:
            raise ValueError("model: must name the model at base-url")
        try:
            self.chat(self.base_url or _LATER)
        except ConfigError as error:
            raise ValueError(str(error).removeprefix(".")) from None
        return self

    def chat(self, base_url: str) -> ChatConfig:
        """The configuration of a client that asks `base_url`."""
        shared = {name: getattr(self, name) for name in ChatConfig.model_fields}
        model = self.model or self.sglang or "local"
        return ChatConfig(**{**shared, "base_url": base_url, "model": model})


class JudgeModelConfig(ModelConfig):
    """A judge: greedy, and its failures are the judge's."""

    boundary: ClassVar[Boundary] = Boundary.JUDGE

    temperature: float | None = Field(default=0.0, ge=0, le=0)
    """Sampling temperature: a judge that draws grades the same answer differently."""


class UserModelConfig(ModelConfig):
    """A model that plays a user: its failures are the user's."""

    boundary: ClassVar[Boundary] = Boundary.USER

"""Where frozen models are: what a person writes about each."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from turnwise.config import ConfigError
from turnwise.episode import Boundary
from turnwise.models.client import ChatConfig

_LATER = "http://later.invalid/v1"


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

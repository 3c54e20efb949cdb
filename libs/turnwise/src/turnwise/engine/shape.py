"""The sizes of a model that the embedded engine computes, and which models those are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from turnwise.config import ConfigError

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotary scalings whose frequencies don't depend on the length of the sequence."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model, from its transformers configuration."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float

    @classmethod
    def of(cls, config: Any) -> Shape:
        """Reads the sizes.

        Raises:
            ConfigError: naming the setting that the decoder can't compute.
        """
        _refuse_unsupported(config)
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=heads,
            kv_heads=config.num_key_value_heads or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocab=config.vocab_size,
            eps=config.rms_norm_eps,
        )


def _refuse_unsupported(config: Any) -> None:
    if config.model_type not in MODEL_TYPES:
        raise ConfigError(
            f"model_type {config.model_type!r} is not supported by the embedded engine; "
            f"it runs {', '.join(MODEL_TYPES)}"
        )
    if config.hidden_act not in ("silu", "swish"):
        raise ConfigError(f"hidden_act {config.hidden_act!r} is not supported; only 'silu' is")
    rope = config.rope_parameters["rope_type"]
    if rope not in ROPE_TYPES:
        raise ConfigError(
            f"rope_type {rope!r} is not supported; these are: {', '.join(ROPE_TYPES)}"
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(
            f"layer_types {sorted(kinds)} are not supported; set use_sliding_window false"
        )
    window = config.sliding_window if config.model_type == "mistral" else None
    if window is not None and window < config.max_position_embeddings:
        raise ConfigError(
            f"sliding_window {window} is not supported; set it null where the model attends to all"
            f" of its {config.max_position_embeddings} positions"
        )

"""Small random models of every supported kind, and what transformers says about their tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 97

DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Far from uniform, so that a wrong cache row shows in the log-probs.
    "initializer_range": 0.4,
}

_KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "qwen3-tied-no-gqa": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {"head_dim": 8, "num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama3-rope-biases": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "llama-yarn": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
}

KINDS = tuple(_KINDS)


def make_model(kind: str = "qwen3", seed: int = 0, **changes: Any) -> Any:
    """A random float32 model in evaluation mode; biases and norms are random too."""
    config, model_class, extra = _KINDS[kind]
    torch.manual_seed(seed)
    model = model_class(config(**{**_SIZES, **extra, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def random_ids(seed: int, length: int) -> NDArray[np.int32]:
    """int32[length] in the vocabulary."""
    return np.random.default_rng(seed).integers(0, VOCAB, length).astype(np.int32)


@torch.no_grad()
def expected_logprobs(
    model: Any, prompt: NDArray[np.int32], ids: NDArray[np.int32], temperature: float = 1.0
) -> NDArray[np.float32]:
    """What transformers gives to `ids` after `prompt`, computed in one pass without a cache."""
    whole = torch.from_numpy(np.concatenate([prompt, ids]).astype(np.int64))[None]
    whole = whole.to(model.device)
    logits = model(whole).logits[0, len(prompt) - 1 : -1] / temperature
    found = logits.log_softmax(-1).gather(-1, whole[0, len(prompt) :, None])[:, 0]
    return np.asarray(found.cpu().numpy())

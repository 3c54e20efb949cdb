"""A small random policy with a tokenizer of its own, in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokendelta
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _tokenizer() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    fast = make(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.chat_template = (files("turnwise.local") / "chatml_tools.jinja").read_text("utf-8")
    return fast


@pytest.fixture
def tokenizer() -> Any:
    """259 tokens: three of ChatML and the bytes."""
    return _tokenizer()


@pytest.fixture
def make_policy() -> Callable[..., Any]:
    """A random float32 Qwen3 model whose vocabulary is the tokenizer's."""

    def make(seed: int = 0, **changes: Any) -> Any:
        torch.manual_seed(seed)
        sizes: dict[str, Any] = {
            "vocab_size": 259,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 512,
            "initializer_range": 0.4,
        }
        model: Any = Qwen3ForCausalLM(Qwen3Config(**{**sizes, **changes}))
        return model.eval()

    return make


@pytest.fixture
def policy_folder(tmp_path: Path, tokenizer: Any, make_policy: Callable[..., Any]) -> Path:
    """A policy on disk."""
    folder = tmp_path / "policy"
    make_policy().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def make_samples() -> Callable[..., list[tokendelta.Sample]]:
    """Samples of two trained turns each; groups of four share their prompt, all share a start."""

    def make(count: int, seed: int = 0, system: int = 24) -> list[tokendelta.Sample]:
        common = np.random.default_rng(seed).integers(3, 259, system)
        made = []
        for index in range(count):
            task = np.random.default_rng([seed, index // 4]).integers(3, 259, 9)
            rng = np.random.default_rng([seed, 1, index])
            parts = [(int(rng.integers(2, 9)), trained) for trained in (1, 0, 1)]
            mask = np.concatenate([np.full(n, trained, np.uint8) for n, trained in parts])
            response = rng.integers(3, 259, len(mask))
            logprobs = np.where(mask == 1, rng.uniform(-3, -0.1, len(mask)), np.nan)
            made.append(
                tokendelta.Sample(
                    ids=np.concatenate([common, task, response]).astype(np.int32),
                    prompt_length=len(common) + len(task),
                    loss_mask=mask,
                    logprobs=logprobs.astype(np.float32),
                    spans=(),
                    weight=1.0,
                )
            )
        return made

    return make

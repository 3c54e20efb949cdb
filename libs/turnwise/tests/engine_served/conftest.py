"""A small random policy on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


@pytest.fixture
def model() -> Any:
    torch.manual_seed(5)
    made: Any = Qwen3ForCausalLM
    return made(
        Qwen3Config(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=256,
            initializer_range=0.4,
            tie_word_embeddings=True,
        )
    ).eval()


@pytest.fixture
def policy(tmp_path: Path, model: Any) -> Path:
    folder = tmp_path / "policy"
    model.save_pretrained(folder)
    return folder

"""What the trainer is measured on: published shapes with random weights, made-up rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokendelta
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

PROMPTS, SAMPLES = 8, 8
SEED = 0


def smollm2_135m() -> Any:
    """HuggingFaceTB/SmolLM2-135M-Instruct, from its config.json."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
            num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
            rms_norm_eps=1e-5, tie_word_embeddings=True,
        )
    )  # fmt: skip


def qwen3_600m() -> Any:
    """Qwen/Qwen3-0.6B, from its config.json."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
            num_attention_heads=16, num_key_value_heads=8, head_dim=128,
            max_position_embeddings=40960, rms_norm_eps=1e-6, tie_word_embeddings=True,
        )
    )  # fmt: skip


MODELS: Mapping[str, Callable[[], Any]] = {
    "SmolLM2-135M": smollm2_135m,
    "Qwen3-0.6B": qwen3_600m,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tokens of a rollout: start and task in common, then `turns` of the policy and of others."""

    start: int = 512
    task: int = 64
    turns: int = 4
    sampled: int = 96
    answer: int = 64
    row: int = 16384

    def samples(self, vocab: int) -> list[tokendelta.Sample]:
        """One a rollout; lengths of turns vary by half."""
        draw = np.random.default_rng(SEED)
        common = draw.integers(vocab, size=self.start)
        made = []
        for _ in range(PROMPTS):
            prompt = np.concatenate([common, draw.integers(vocab, size=self.task)])
            for _ in range(SAMPLES):
                parts = []
                for turn in range(2 * self.turns - 1):
                    mean = self.answer if turn % 2 else self.sampled
                    length = int(draw.integers(mean // 2, mean + mean // 2))
                    parts.append(np.full(length, 1 - turn % 2, np.uint8))
                mask = np.concatenate(parts)
                logprobs = np.where(mask == 1, -np.log(vocab), np.nan).astype(np.float32)
                ids = np.concatenate([prompt, draw.integers(vocab, size=len(mask))])
                made.append(
                    tokendelta.Sample(
                        ids=ids.astype(np.int32),
                        prompt_length=len(prompt),
                        loss_mask=mask,
                        logprobs=logprobs,
                        spans=(),
                        weight=1.0,
                    )
                )
        return made


def make(model: Callable[[], Any], dtype: str, device: str) -> Any:
    """The model with random weights, the same for a seed."""
    torch.manual_seed(SEED)
    with torch.device(device):
        made = model()
    return made.to(getattr(torch, dtype)).eval()

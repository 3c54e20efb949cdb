"""A policy and episodes of the size that the main job has, without its tasks.

64 episodes in 8 groups: all share a system prompt, a group shares its task; four turns each, with
an observation after every turn. Weights and ids are random, so nothing ends early and each turn's
length is set beforehand: every implementation samples the same number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tokendelta
import torch
from numpy.typing import NDArray
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCAB = 1500
GROUP = 8


def make_policy() -> Any:
    """A random Qwen3 model with 2.15 M parameters."""
    torch.manual_seed(0)
    model: Any = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=2048,
        )
    )
    return model.eval()


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sampled.

    Attributes:
        prompts: int32[p] per episode, the first prompt.
        observations: int32[o] per episode and turn.
        lengths: Tokens to sample, int64[episodes, turns].
    """

    prompts: list[NDArray[np.int32]]
    observations: list[list[NDArray[np.int32]]]
    lengths: NDArray[np.int64]

    @property
    def sampled_tokens(self) -> int:
        return int(self.lengths.sum())


def make_workload(episodes: int, *, varied: bool, turns: int = 4) -> Workload:
    """`varied` turns have 4 to 52 tokens, the others 28, which is also the varied ones' mean."""
    rng = np.random.default_rng(0)

    def ids(length: int) -> NDArray[np.int32]:
        return rng.integers(0, VOCAB, length).astype(np.int32)

    system = ids(150)
    tasks = [ids(int(rng.integers(40, 80))) for _ in range(-(-episodes // GROUP))]
    lengths = rng.integers(4, 53, (episodes, turns)) if varied else np.full((episodes, turns), 28)
    return Workload(
        prompts=[np.concatenate([system, tasks[i // GROUP]]) for i in range(episodes)],
        observations=[
            [ids(int(rng.integers(15, 60))) for _ in range(turns)] for _ in range(episodes)
        ],
        lengths=lengths,
    )


def make_samples(workload: Workload) -> list[tokendelta.Sample]:
    """The episodes as they are trained: random ids in the place of what is sampled."""
    rng = np.random.default_rng(1)
    samples = []
    for prompt, observations, lengths in zip(
        workload.prompts, workload.observations, workload.lengths.tolist(), strict=True
    ):
        parts, mask = [], []
        for turn, length in enumerate(lengths):
            parts.append(rng.integers(0, VOCAB, length).astype(np.int32))
            mask.append(np.ones(length, np.uint8))
            if turn + 1 < len(lengths):
                parts.append(observations[turn])
                mask.append(np.zeros(len(observations[turn]), np.uint8))
        loss_mask = np.concatenate(mask)
        samples.append(
            tokendelta.Sample(
                ids=np.concatenate([prompt, *parts]),
                prompt_length=len(prompt),
                loss_mask=loss_mask,
                logprobs=np.where(loss_mask == 1, -7.3, np.nan).astype(np.float32),
                spans=(),
                weight=1.0,
            )
        )
    return samples

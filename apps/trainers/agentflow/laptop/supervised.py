"""Supervised training of a planner from scratch: its own tokens of recorded turns."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from turnwise.local import supervised
from turnwise.local.demonstrations import Demonstrations
from turnwise.local.supervised import Log, Schedule, fit, replay_batches

from apps.trainers.agentflow.laptop.demonstrations import MAX_CONTEXT_TOKENS

LOG_EVERY = 25
POOL = 32


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, hidden_size: int, layers: int, seed: int
) -> Qwen3ForCausalLM:
    """See `turnwise.local.supervised.build_model`."""
    return supervised.build_model(
        tokenizer,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        layers=layers,
        max_tokens=2 * MAX_CONTEXT_TOKENS,
        seed=seed,
    )


def train(
    model: Any, schedule: Schedule, demonstrations: Demonstrations, *, batch_tokens: int, log: Log
) -> float:
    """Trains on the planner's tokens; returns the token accuracy of the last steps."""
    batches = replay_batches(schedule.seed, demonstrations, batch_tokens, pool=POOL)
    return fit(model, schedule, batches, name="replay", log=log, log_every=LOG_EVERY)

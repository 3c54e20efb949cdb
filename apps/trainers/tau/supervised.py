"""Supervised training of a policy from scratch: first to copy, then to replay demonstrations.

1. `train_copying`: random tokens, repeated. A model that meets identifiers it has never seen must
   copy them; replay alone gives fluent dialogues with wrong identifiers. Copying forms within a
   few hundred steps with untied embeddings of standard deviation 0.3, and does not with the usual
   0.02.
2. `train_replay`: next-token cross-entropy on the expert's own tokens of recorded episodes.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from turnwise.local import supervised
from turnwise.local.demonstrations import Demonstrations
from turnwise.local.supervised import Log, Schedule, copy_batches, fit, replay_batches

LOG_EVERY = 100
POOL = 64
MAX_TOKENS = 2048


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, hidden_size: int, layers: int, seed: int
) -> Qwen3ForCausalLM:
    """See `turnwise.local.supervised.build_model`."""
    return supervised.build_model(
        tokenizer,
        hidden_size=hidden_size,
        intermediate_size=-(-hidden_size * 8 // 3 // 64) * 64,
        layers=layers,
        max_tokens=MAX_TOKENS,
        seed=seed,
    )


def train_copying(model: Any, schedule: Schedule, *, reserved: int, rows: int, log: Log) -> float:
    """Trains on random tokens, repeated; returns the copy accuracy of the last steps.

    Args:
        reserved: Ids below it are special and never drawn.
        rows: Sequences a step.
    """
    batches = copy_batches(schedule, model.config.vocab_size, reserved, rows)
    return fit(model, schedule, batches, name="copy", log=log, log_every=LOG_EVERY)


def train_replay(
    model: Any,
    schedule: Schedule,
    demonstrations: Demonstrations,
    *,
    batch_tokens: int,
    log: Log,
) -> float:
    """Trains on the expert's tokens; returns the token accuracy of the last steps.

    `schedule.steps` steps are done, in as many passes over the data as that takes.
    """
    batches = replay_batches(schedule.seed, demonstrations, batch_tokens, pool=POOL)
    return fit(model, schedule, batches, name="replay", log=log, log_every=LOG_EVERY)

"""Supervised training of a planner from scratch: next-token cross-entropy on recorded turns.

AdamW, linear warm-up over a twentieth of the steps, cosine down to a twentieth of the peak. Only
the planner's own tokens are trained on. Embeddings are untied and begin with a standard deviation
of 0.3: with the usual 0.02 a model this small needs several times the steps to read a question.

Shapes: B rows, L tokens a row, T trained tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from apps.trainers.agentflow.demonstrations import MAX_CONTEXT_TOKENS, Demonstrations

EMBEDDING_STD = 0.3
HEAD_DIM = 32
_LOG_EVERY = 25
# Rows are sorted by length within pools of this many batches, so that little is padding.
_POOL = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How to optimise.

    Attributes:
        steps: Optimiser steps.
        learning_rate: The peak.
        batch_tokens: Tokens a step, padding included.
        seed: Of the data's order.
    """

    steps: int
    learning_rate: float
    batch_tokens: int
    seed: int

    def rate(self, step: int) -> float:
        """Learning rate of step 0 to steps - 1."""
        warmup = max(1, self.steps // 20)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        part = (step - warmup) / max(1, self.steps - warmup)
        return self.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * part)))


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, hidden_size: int, layers: int, seed: int
) -> Qwen3ForCausalLM:
    """A Qwen3-architecture model with random weights.

    Raises ValueError if `hidden_size` is no multiple of 64.
    """
    if hidden_size % (2 * HEAD_DIM):
        raise ValueError(f"hidden size must be a multiple of {2 * HEAD_DIM}, found {hidden_size}")
    heads = hidden_size // HEAD_DIM
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=HEAD_DIM,
        max_position_embeddings=2 * MAX_CONTEXT_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD)
    return model


def train(
    model: Any, schedule: Schedule, demonstrations: Demonstrations, log: Callable[[str], None]
) -> float:
    """Trains for `schedule.steps` steps; returns the token accuracy of the last ones."""
    batches = make_batches(schedule, demonstrations)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.01)
    model.train()
    started = time.perf_counter()
    hits = tokens = loss_sum = torch.zeros(())
    accuracy = 0.0
    for step in range(schedule.steps):
        ids, trained = next(batches)
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        loss, hit, count = _loss(model, torch.from_numpy(ids), torch.from_numpy(trained))
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        hits, tokens, loss_sum = hits + hit, tokens + count, loss_sum + loss.detach() * count
        if (step + 1) % _LOG_EVERY == 0 or step + 1 == schedule.steps:
            accuracy = float(hits / tokens)
            log(
                f"step {step + 1}/{schedule.steps} loss {float(loss_sum / tokens):.4f} "
                f"accuracy {accuracy:.4f} {time.perf_counter() - started:.0f} s"
            )
            hits = tokens = loss_sum = torch.zeros(())
    model.eval()
    return accuracy


def make_batches(
    schedule: Schedule, demonstrations: Demonstrations
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """ids[B, L] and the tokens to predict, right-padded, pass after pass without end."""
    rng = np.random.default_rng(schedule.seed)
    lengths = np.diff(demonstrations.offsets)
    rows = max(1, schedule.batch_tokens // int(lengths.max()))
    while True:
        order = rng.permutation(len(demonstrations))
        for start in range(0, len(order), rows * _POOL):
            pool = order[start : start + rows * _POOL]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches = [pool[at : at + rows] for at in range(0, len(pool), rows)]
            for at in rng.permutation(len(batches)):
                yield _padded(demonstrations, batches[at])


def _padded(
    demonstrations: Demonstrations, members: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    spans = [(demonstrations.offsets[i], demonstrations.offsets[i + 1]) for i in members]
    width = max(int(stop - start) for start, stop in spans)
    ids = np.zeros((len(spans), width), dtype=np.int64)
    trained = np.zeros(ids.shape, dtype=bool)
    for row, (start, stop) in enumerate(spans):
        ids[row, : stop - start] = demonstrations.ids[start:stop]
        trained[row, : stop - start] = demonstrations.trained[start:stop]
    return ids, trained


def _loss(model: Any, ids_BL: Tensor, trained_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean cross-entropy over the T trained tokens, how many are the likeliest, and T.

    Rows are padded on the right and attention is causal, so no mask is needed.
    """
    places = trained_BL[:, 1:]
    hidden = model.model(input_ids=ids_BL, use_cache=False).last_hidden_state
    logits_TV = model.lm_head(hidden[:, :-1][places])
    targets_T = ids_BL[:, 1:][places]
    loss = cross_entropy(logits_TV, targets_T)
    return loss, (logits_TV.argmax(-1) == targets_T).sum(), places.sum()

"""Supervised training of a policy from scratch: first to copy, then to replay demonstrations.

1. `train_copying`: random tokens, repeated. A model that meets identifiers it has never seen must
   copy them; replay alone gives fluent dialogues with wrong identifiers. Copying forms within a
   few hundred steps with untied embeddings of standard deviation 0.3, and does not with the usual
   0.02.
2. `train_replay`: next-token cross-entropy on the expert's own tokens of recorded episodes.

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

from apps.trainers.tau.demonstrations import Demonstrations

EMBEDDING_STD = 0.3
HEAD_DIM = 32
_LOG_EVERY = 100
# Rows are sorted by length within pools of this many batches, so that little is padding.
_POOL = 64

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How to optimise: AdamW, linear warm-up over a twentieth, cosine to a twentieth of the peak.

    Attributes:
        steps: Optimiser steps.
        learning_rate: The peak.
        seed: Of the data's order.
    """

    steps: int
    learning_rate: float
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
        intermediate_size=-(-hidden_size * 8 // 3 // 64) * 64,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=HEAD_DIM,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD)
    return model


def train_copying(
    model: Qwen3ForCausalLM, schedule: Schedule, *, reserved: int, rows: int, log: Log
) -> float:
    """Trains on random tokens, repeated; returns the copy accuracy of the last steps.

    Args:
        reserved: Ids below it are special and never drawn.
        rows: Sequences a step.
    """
    batches = copy_batches(schedule, model.config.vocab_size, reserved, rows)
    return _train(model, schedule, batches, "copy", log)


def train_replay(
    model: Qwen3ForCausalLM,
    schedule: Schedule,
    demonstrations: Demonstrations,
    *,
    batch_tokens: int,
    log: Log,
) -> float:
    """Trains on the expert's tokens; returns the token accuracy of the last steps.

    `schedule.steps` steps are done, in as many passes over the data as that takes.
    """
    batches = replay_batches(schedule.seed, demonstrations, batch_tokens)
    return _train(model, schedule, batches, "replay", log)


def copy_batches(
    schedule: Schedule, vocab_size: int, reserved: int, rows: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """ids[B, L] and the tokens to predict: every occurrence of a string but the first.

    A string has 4 tokens at first and up to 32 towards the end.
    """
    rng = np.random.default_rng(schedule.seed)
    for step in range(schedule.steps):
        width = int(rng.integers(4, 5 + 28 * step // schedule.steps))
        repeats = max(2, 64 // width)
        string = rng.integers(reserved, vocab_size, size=(rows, width))
        ids = np.tile(string, (1, repeats))
        trained = np.zeros(ids.shape, dtype=bool)
        trained[:, width + 1 :] = True
        yield ids, trained


def replay_batches(
    seed: int, demonstrations: Demonstrations, batch_tokens: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """ids[B, L] and the tokens to predict, right-padded, pass after pass without end."""
    rng = np.random.default_rng(seed)
    offsets = demonstrations.offsets
    lengths = np.diff(offsets)
    rows = max(1, batch_tokens // int(lengths.max()))
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


def _train(
    model: Any,
    schedule: Schedule,
    batches: Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]],
    name: str,
    log: Log,
) -> float:
    device = model.device
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.01, fused=fused
    )
    model.train()
    started = time.perf_counter()
    hits = tokens = loss_sum = torch.zeros((), device=device)
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
                f"{name} step {step + 1}/{schedule.steps} loss {float(loss_sum / tokens):.4f} "
                f"accuracy {accuracy:.4f} {time.perf_counter() - started:.0f} s"
            )
            hits = tokens = loss_sum = torch.zeros((), device=device)
    model.eval()
    return accuracy


def _loss(
    model: Qwen3ForCausalLM, ids_BL: Tensor, trained_BL: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean cross-entropy over the T trained tokens, how many are the likeliest, and T.

    Rows are padded on the right and attention is causal, so no mask is needed.
    """
    device = model.device
    ids_BL = ids_BL.to(device, non_blocking=True)
    places = trained_BL[:, 1:].to(device, non_blocking=True)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model.model(input_ids=ids_BL, use_cache=False).last_hidden_state
        logits_TV = model.lm_head(hidden[:, :-1][places])
    targets_T = ids_BL[:, 1:][places]
    loss = cross_entropy(logits_TV.float(), targets_T)
    return loss, (logits_TV.argmax(-1) == targets_T).sum(), places.sum()

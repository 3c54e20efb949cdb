"""Supervised training of a small policy from scratch: next-token cross-entropy.

It makes what reinforcement starts from. Embeddings are untied and begin with a standard deviation
of 0.3: with the usual 0.02 a model this small needs several times the steps to read and to copy.

Shapes: B rows, L tokens a row, T trained tokens.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from turnwise.config import ConfigError
from turnwise.local.demonstrations import Demonstrations

EMBEDDING_STD = 0.3
HEAD_DIM = 32

Batches: TypeAlias = Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]
Log: TypeAlias = Callable[[str], None]


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
    tokenizer: PreTrainedTokenizerFast,
    *,
    hidden_size: int,
    intermediate_size: int,
    layers: int,
    max_tokens: int,
    seed: int,
) -> Qwen3ForCausalLM:
    """A Qwen3-architecture model with random weights, for sequences of up to `max_tokens`.

    Raises ValueError if `hidden_size` is no multiple of 64.
    """
    if hidden_size % (2 * HEAD_DIM):
        raise ValueError(f"hidden size must be a multiple of {2 * HEAD_DIM}, found {hidden_size}")
    heads = hidden_size // HEAD_DIM
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=HEAD_DIM,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD)
    return model


def fit(
    model: Any, schedule: Schedule, batches: Batches, *, name: str, log: Log, log_every: int
) -> float:
    """Does `schedule.steps` steps; returns the token accuracy of the last ones.

    Args:
        model: Trained in place.
        schedule: How.
        batches: What is learnt, a step each.
        name: Of the training, for the log.
        log: Gets a line every `log_every` steps and at the end.
        log_every: Steps.
    """
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
        if (step + 1) % log_every == 0 or step + 1 == schedule.steps:
            accuracy = float(hits / tokens)
            log(
                f"{name} step {step + 1}/{schedule.steps} loss {float(loss_sum / tokens):.4f} "
                f"accuracy {accuracy:.4f} {time.perf_counter() - started:.0f} s"
            )
            hits = tokens = loss_sum = torch.zeros((), device=device)
    model.eval()
    return accuracy


def copy_batches(
    schedule: Schedule, vocab_size: int, reserved: int, rows: int, *, length: int = 64
) -> Batches:
    """ids[B, L] and the tokens to predict: every occurrence of a random string but the first.

    Copying forms within a few hundred steps of this; from demonstrations alone it takes many times
    as long, and names that were never seen come out wrong. A string has 4 tokens at first and up to
    half of `length` towards the end.

    Args:
        schedule: Steps and seed.
        vocab_size: Ids are below it.
        reserved: Ids below it are special and never drawn.
        rows: Sequences a step.
        length: Tokens of a sequence, at most.
    """
    rng = np.random.default_rng(schedule.seed)
    for step in range(schedule.steps):
        width = int(rng.integers(4, 5 + (length // 2 - 4) * step // schedule.steps))
        repeats = max(2, length // width)
        string = rng.integers(reserved, vocab_size, size=(rows, width))
        ids = np.tile(string, (1, repeats))
        trained = np.zeros(ids.shape, dtype=bool)
        trained[:, width + 1 :] = True
        yield ids, trained


def replay_batches(
    seed: int, demonstrations: Demonstrations, batch_tokens: int, *, pool: int
) -> Batches:
    """ids[B, L] and the tokens to predict, right-padded, pass after pass without end.

    Args:
        seed: Of the order.
        demonstrations: What is replayed.
        batch_tokens: Tokens a batch, padding included.
        pool: Rows are sorted by length within this many batches, so that little is padding.
    """
    rng = np.random.default_rng(seed)
    offsets = demonstrations.offsets
    lengths = np.diff(offsets)
    rows = max(1, batch_tokens // int(lengths.max()))
    while True:
        order = rng.permutation(len(demonstrations))
        for start in range(0, len(order), rows * pool):
            some = order[start : start + rows * pool]
            some = some[np.argsort(lengths[some], kind="stable")]
            batches = [some[at : at + rows] for at in range(0, len(some), rows)]
            for at in rng.permutation(len(batches)):
                yield _padded(demonstrations, batches[at])


def save_policy(
    model: Any, tokenizer: PreTrainedTokenizerFast, out: Path, figures: dict[str, Any]
) -> None:
    """Writes weights (bf16), tokenizer and `warmstart.json` with the figures.

    The folder has another name first: `out` is complete if it exists.
    """
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    text = json.dumps(figures, indent=2)
    (unfinished / "warmstart.json").write_text(f"{text}\n", encoding="utf-8")
    unfinished.rename(out)


def refuse_existing(out: Path) -> None:
    """Raises ConfigError where `out` exists."""
    if out.exists():
        raise ConfigError(f"out: {out} exists; name another folder or remove it")


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
    device = model.device
    ids_BL = ids_BL.to(device, non_blocking=True)
    places = trained_BL[:, 1:].to(device, non_blocking=True)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model.model(input_ids=ids_BL, use_cache=False).last_hidden_state
        logits_TV = model.lm_head(hidden[:, :-1][places])
    targets_T = ids_BL[:, 1:][places]
    loss = cross_entropy(logits_TV.float(), targets_T)
    return loss, (logits_TV.argmax(-1) == targets_T).sum(), places.sum()

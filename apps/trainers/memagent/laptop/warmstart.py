"""Makes the policy that the main job starts from.

    ./pants run apps/trainers/memagent/laptop:warmstart -- --out runs/reader

1. A tokenizer is learned from prompts, texts and answers (`tokenizer`).
2. Texts are read through the episode loop by readers with lapses (`demonstrations`).
3. A model with random weights learns to copy, then to say what those readers said
   (`turnwise.local.supervised`).
4. Weights (bf16), tokenizer, chat template and `warmstart.json` with every setting and figure are
   written to a folder that AutoModelForCausalLM and AutoTokenizer load.

No text of a run's splits is seen. The result is the same for the same settings, thread count and
kind of processor. With its defaults this is the recipe of the shipped policy.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokendelta
import torch
from pydantic import Field
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from turnwise.arguments import parse_args
from turnwise.command import run_command
from turnwise.config import CommandConfig, ConfigError, field_names, load_toml
from turnwise.local.demonstrations import Demonstrations
from turnwise.local.supervised import Schedule, build_model, copy_batches, fit, replay_batches
from turnwise.rollout import derive_seed

from apps.trainers.memagent.laptop.demonstrations import LONGEST, Lapses, corpus, record
from apps.trainers.memagent.laptop.tokenizer import MAX_TOKENS, train_tokenizer
from apps.trainers.memagent.method import METHOD, MemAgentMethod
from apps.trainers.memagent.options import MemAgentOptions
from apps.trainers.memagent.prompts import make_prompts

CORPUS_STORIES = 400
SENTENCES_KEPT = 3
"""Sentences of a demonstrated memory at most: they fit the laptop preset's limit."""
COPY_TOKENS = 48
POOL, LOG_EVERY = 32, 50


class WarmstartConfig(CommandConfig):
    """Options of the warm start."""

    out: Path = Path("runs/reader")
    """Folder for the policy; must not exist yet."""
    base: Path | None = None
    """Folder of a policy of this command to go on from: it has learnt to copy already."""
    seed: int = Field(default=1, ge=0)
    """Fixes texts, weights and order of the data."""
    dialogues: int = Field(default=5_000, ge=1)
    """Demonstrations to learn from."""
    sentences: int = Field(default=LONGEST, ge=4)
    """Of a demonstration's text at most; in short texts most sections hold what counts."""
    overlook: float = Field(default=0.25, ge=0, le=1)
    """Chance that a sentence that counts is overlooked."""
    forget: float = Field(default=0.08, ge=0, le=1)
    """Chance that a kept sentence that counts is forgotten."""
    clutter: float = Field(default=0.08, ge=0, le=1)
    """Chance that a sentence that does not count is written down."""
    hidden_size: int = Field(default=128, ge=64, multiple_of=64)
    """Width of the model."""
    layers: int = Field(default=5, ge=1)
    """Depth of the model."""
    copy_steps: int = Field(default=250, ge=1)
    """Optimiser steps of learning to copy."""
    copy_rows: int = Field(default=64, ge=1)
    """Sequences a step of learning to copy."""
    steps: int = Field(default=650, ge=1)
    """Optimiser steps on demonstrations."""
    batch_tokens: int = Field(default=4_096, ge=512)
    """Tokens a step of those, padding included."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Peak learning rate."""
    threads: int = Field(default=2, ge=1)
    """Threads for torch."""


def warmstart(config: WarmstartConfig) -> dict[str, Any]:
    """Makes the policy; returns the figures that are written to `warmstart.json`.

    Raises:
        ConfigError: the output folder exists.
    """
    if config.out.exists():
        raise ConfigError(f"out: {config.out} exists; name another folder or remove it")
    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    method = laptop_method()
    tokenizer: Any = make_tokenizer(method, config.seed)
    if config.base is not None:
        tokenizer = AutoTokenizer.from_pretrained(config.base)
    lapses = Lapses(overlook=config.overlook, forget=config.forget, clutter=config.clutter)
    demonstrations = asyncio.run(
        record(
            method,
            tokenizer,
            tokendelta.Profile.from_tokenizer(tokenizer),
            seed=derive_seed(config.seed, "demonstrations"),
            count=config.dialogues,
            lapses=lapses,
            most=SENTENCES_KEPT,
            longest=config.sentences,
        )
    )
    print(
        f"{len(tokenizer)} tokens; {len(demonstrations)} turns of {len(demonstrations.ids)} tokens,"
        f" {demonstrations.flawed.mean():.3f} flawed, {time.perf_counter() - started:.0f} s",
        flush=True,
    )
    model = make_model(config, tokenizer)
    copied, accuracy = train(model, config, demonstrations, reserved=len(tokenizer.all_special_ids))
    figures = {
        "settings": config.model_dump(mode="json", exclude={"out", "config", "base"}),
        "parameters": model.num_parameters(),
        "turns": len(demonstrations),
        "tokens": len(demonstrations.ids),
        "copy_accuracy": None if math.isnan(copied) else copied,
        "accuracy": accuracy,
        "torch": torch.__version__,
        "wall_s": round(time.perf_counter() - started),
    }
    save(model, tokenizer, config.out, figures)
    print(f"policy of {model.num_parameters()} parameters in {config.out}")
    return figures


def make_model(config: WarmstartConfig, tokenizer: Any) -> Any:
    """The model of the base, or one with random weights."""
    if config.base is not None:
        return AutoModelForCausalLM.from_pretrained(config.base, dtype=torch.float32)
    return build_model(
        tokenizer,
        hidden_size=config.hidden_size,
        intermediate_size=3 * config.hidden_size,
        layers=config.layers,
        max_tokens=MAX_TOKENS,
        seed=derive_seed(config.seed, "weights") % 2**31,
    )


def train(
    model: Any, config: WarmstartConfig, demonstrations: Demonstrations, *, reserved: int
) -> tuple[float, float]:
    """Trains in place; returns the token accuracy of the last steps of copying and of replay.

    What goes on from a base does not learn to copy again; its accuracy is NaN.
    """

    def log(line: str) -> None:
        print(line, flush=True)

    def schedule(steps: int, name: str) -> Schedule:
        return Schedule(
            steps=steps,
            learning_rate=config.learning_rate,
            seed=derive_seed(config.seed, name),
        )

    first, then = schedule(config.copy_steps, "copies"), schedule(config.steps, "order")
    copied = math.nan
    if config.base is None:
        copies = copy_batches(
            first, model.config.vocab_size, reserved, config.copy_rows, length=COPY_TOKENS
        )
        copied = fit(model, first, copies, name="copy", log=log, log_every=LOG_EVERY)
    replays = replay_batches(then.seed, demonstrations, config.batch_tokens, pool=POOL)
    return copied, fit(model, then, replays, name="replay", log=log, log_every=LOG_EVERY)


def laptop_method() -> MemAgentMethod:
    """The method with the options of `presets/laptop.toml`."""
    assert METHOD.preset is not None
    preset = field_names(MemAgentOptions, load_toml(METHOD.preset)[METHOD.name])
    return METHOD(MemAgentOptions(**preset))


def make_tokenizer(method: MemAgentMethod, seed: int) -> PreTrainedTokenizerFast:
    """The tokenizer of a seed."""
    prompts = make_prompts(method.options.prompt, method.options.order)
    shown = (prompts.update, prompts.final, prompts.nothing)
    return train_tokenizer(corpus(shown, seed=derive_seed(seed, "tokenizer"), count=CORPUS_STORIES))


def save(
    model: Any, tokenizer: PreTrainedTokenizerFast, out: Path, figures: dict[str, Any]
) -> None:
    """Writes the folder under another name first: `out` is complete if it exists."""
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    text = json.dumps(figures, indent=2)
    (unfinished / "warmstart.json").write_text(f"{text}\n", encoding="utf-8")
    unfinished.rename(out)


def main(argv: Sequence[str]) -> None:
    """The command."""
    config = parse_args(
        WarmstartConfig,
        argv,
        prog="apps/trainers/memagent/laptop:warmstart",
        description="Make the policy that the main job starts from.",
    )
    warmstart(config)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

"""Makes the policy that the main job starts from.

    ./pants run apps/trainers/toolorchestra/laptop:warmstart -- --out runs/orchestrator

1. A tokenizer is learned from prompts, turns and results (`tokenizer`).
2. Questions are led through the episode loop by somebody who knows no expert's worth
   (`demonstrations`).
3. A model with random weights learns to say what was said there (`turnwise.local.supervised`).
4. Weights (bf16), tokenizer, chat template and `warmstart.json` with every setting and figure are
   written to a folder that AutoModelForCausalLM and AutoTokenizer load.

No tune or held-out question and no unseen expert is seen. The result is the same for the same
settings, thread count and kind of processor. Minutes on one core; with its defaults this is the
recipe of the shipped policy.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokendelta
import torch
from pydantic import Field
from transformers import PreTrainedTokenizerFast
from turnwise.arguments import parse_args
from turnwise.command import run_command
from turnwise.config import CommandConfig
from turnwise.local.demonstrations import Demonstrations
from turnwise.local.supervised import (
    Schedule,
    build_model,
    fit,
    refuse_existing,
    replay_batches,
    save_policy,
)
from turnwise.rollout import derive_seed

from apps.trainers.toolorchestra.laptop.demonstrations import corpus, record
from apps.trainers.toolorchestra.laptop.method import laptop_method
from apps.trainers.toolorchestra.laptop.tokenizer import MAX_TOKENS, train_tokenizer

CORPUS_QUESTIONS = 1_000
"""Questions that the tokenizer is learned from; more of them add no new words."""
POOL, LOG_EVERY = 32, 25


class WarmstartConfig(CommandConfig):
    """Options of the warm start."""

    out: Path = Path("runs/orchestrator")
    """Folder for the policy; must not exist yet."""
    seed: int = Field(default=1, ge=0)
    """Fixes questions, tables, weights and order of the data."""
    dialogues: int = Field(default=4_000, ge=1)
    """Demonstrations to learn from."""
    flaw_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Probability that a turn breaks the form."""
    hidden_size: int = Field(default=128, ge=64, multiple_of=64)
    """Width of the model."""
    layers: int = Field(default=3, ge=1)
    """Depth of the model."""
    steps: int = Field(default=500, ge=1)
    """Optimiser steps on demonstrations."""
    batch_tokens: int = Field(default=4_096, ge=512)
    """Tokens a step of those, padding included."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Peak learning rate."""
    threads: int = Field(default=1, ge=1)
    """Threads for torch."""


def warmstart(config: WarmstartConfig) -> dict[str, Any]:
    """Makes the policy; returns the figures that are written to `warmstart.json`.

    Raises:
        ConfigError: the output folder exists.
    """
    refuse_existing(config.out)
    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    tokenizer, demonstrations = asyncio.run(_record(config))
    _log(
        f"{len(tokenizer)} tokens; {len(demonstrations)} episodes of {len(demonstrations.ids)}"
        f" tokens, {demonstrations.flawed.mean():.3f} flawed, {time.perf_counter() - started:.0f} s"
    )
    model: Any = build_model(
        tokenizer,
        hidden_size=config.hidden_size,
        intermediate_size=3 * config.hidden_size,
        layers=config.layers,
        max_tokens=MAX_TOKENS,
        seed=derive_seed(config.seed, "weights") % 2**31,
    )
    schedule = Schedule(
        steps=config.steps,
        learning_rate=config.learning_rate,
        seed=derive_seed(config.seed, "order"),
    )
    replays = replay_batches(schedule.seed, demonstrations, config.batch_tokens, pool=POOL)
    accuracy = fit(model, schedule, replays, name="replay", log=_log, log_every=LOG_EVERY)
    figures = {
        "settings": config.model_dump(mode="json", exclude={"out", "config"}),
        "parameters": model.num_parameters(),
        "episodes": len(demonstrations),
        "tokens": len(demonstrations.ids),
        "accuracy": accuracy,
        "torch": torch.__version__,
        "wall_s": round(time.perf_counter() - started),
    }
    save_policy(model, tokenizer, config.out, figures)
    _log(f"policy of {model.num_parameters()} parameters in {config.out}")
    return figures


async def _record(config: WarmstartConfig) -> tuple[PreTrainedTokenizerFast, Demonstrations]:
    async with laptop_method() as method:
        texts = corpus(derive_seed(config.seed, "tokenizer"), CORPUS_QUESTIONS)
        tokenizer = train_tokenizer(texts)
        demonstrations = await record(
            method,
            tokenizer,
            tokendelta.Profile.from_tokenizer(tokenizer),
            seed=derive_seed(config.seed, "demonstrations"),
            count=config.dialogues,
            flaw_share=config.flaw_share,
        )
        return tokenizer, demonstrations


def _log(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str]) -> None:
    """The command."""
    config = parse_args(
        WarmstartConfig,
        argv,
        prog="apps/trainers/toolorchestra/laptop:warmstart",
        description="Make the policy that the main job starts from.",
    )
    warmstart(config)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

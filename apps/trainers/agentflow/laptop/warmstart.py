"""Makes the planner that the main job starts from.

    ./pants run apps/trainers/agentflow/laptop:warmstart -- --out runs/planner

1. A tokenizer is learned from prompts and turns (`tokenizer`).
2. Questions are answered through the episode loop by a planner that knows no tool's worth
   (`demonstrations`).
3. A model with random weights learns to say what that planner said (`supervised`).
4. Weights (bf16), tokenizer, chat template and `warmstart.json` with every setting and figure are
   written to a folder that AutoModelForCausalLM and AutoTokenizer load.

No held-out problem is seen. The result is the same for the same settings, thread count and kind of
processor. Minutes on one core; with its defaults this is the recipe of the shipped planner.
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
from sandbox import Isolation
from transformers import PreTrainedTokenizerFast
from turnwise.arguments import parse_args
from turnwise.command import run_command
from turnwise.config import CommandConfig
from turnwise.local.demonstrations import Demonstrations
from turnwise.local.supervised import Schedule, refuse_existing, save_policy
from turnwise.rollout import derive_seed

from apps.trainers.agentflow.laptop.demonstrations import corpus, record
from apps.trainers.agentflow.laptop.method import laptop_method
from apps.trainers.agentflow.laptop.supervised import build_model, train
from apps.trainers.agentflow.laptop.tokenizer import VOCAB_SIZE, train_tokenizer

MAX_CORPUS_PROBLEMS = 3_000
"""Problems that the tokenizer is learned from; more of them add no new words."""


class WarmstartConfig(CommandConfig):
    """Options of the warm start."""

    out: Path = Path("runs/planner")
    """Folder for the planner; must not exist yet."""
    seed: int = Field(default=1, ge=0)
    """Fixes problems, weights and order of the data."""
    dialogues: int = Field(default=4_000, ge=1)
    """Demonstrations to learn from."""
    flaw_share: float = Field(default=0.2, ge=0.0, le=1.0)
    """Probability that a next step breaks the form."""
    hidden_size: int = Field(default=128, ge=64, multiple_of=64)
    """Width of the model."""
    layers: int = Field(default=4, ge=1)
    """Depth of the model."""
    vocab_size: int = Field(default=VOCAB_SIZE, ge=300, le=65_535)
    """Tokens of the tokenizer at most."""
    steps: int = Field(default=400, ge=1)
    """Optimiser steps."""
    batch_tokens: int = Field(default=8_192, ge=512)
    """Tokens a step, padding included."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Peak learning rate."""
    threads: int = Field(default=1, ge=1)
    """Threads for torch."""
    isolation: Isolation = "auto"
    """Walls around the programs: the strongest that hold here, or `none`, which must be typed."""


def warmstart(config: WarmstartConfig) -> dict[str, Any]:
    """Makes the planner; returns the figures that are written to `warmstart.json`.

    Raises:
        ConfigError: the output folder exists.
        PreflightError: this machine has no sandbox.
    """
    refuse_existing(config.out)
    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    tokenizer, demonstrations = asyncio.run(_record(config))
    print(
        f"{len(tokenizer)} tokens; {len(demonstrations)} turns of {len(demonstrations.ids)} tokens,"
        f" {demonstrations.flawed.mean():.3f} flawed, {time.perf_counter() - started:.0f} s",
        flush=True,
    )
    model: Any = build_model(
        tokenizer,
        hidden_size=config.hidden_size,
        layers=config.layers,
        seed=derive_seed(config.seed, "weights") % 2**31,
    )
    schedule = Schedule(
        steps=config.steps,
        learning_rate=config.learning_rate,
        seed=derive_seed(config.seed, "order"),
    )
    accuracy = train(
        model,
        schedule,
        demonstrations,
        batch_tokens=config.batch_tokens,
        log=lambda line: print(line, flush=True),
    )
    figures = {
        "settings": config.model_dump(mode="json", exclude={"out", "config", "isolation"}),
        "parameters": model.num_parameters(),
        "turns": len(demonstrations),
        "tokens": len(demonstrations.ids),
        "accuracy": accuracy,
        "torch": torch.__version__,
        "wall_s": round(time.perf_counter() - started),
    }
    save_policy(model, tokenizer, config.out, figures)
    print(f"planner of {model.num_parameters()} parameters in {config.out}")
    return figures


async def _record(config: WarmstartConfig) -> tuple[PreTrainedTokenizerFast, Demonstrations]:
    sandbox = {"isolation": config.isolation, "packages": ()}
    async with laptop_method(on_malformed="retry", sandbox=sandbox) as method:
        texts = corpus(
            method,
            seed=derive_seed(config.seed, "tokenizer"),
            count=min(MAX_CORPUS_PROBLEMS, config.dialogues),
        )
        tokenizer = train_tokenizer(texts, vocab_size=config.vocab_size)
        demonstrations = await record(
            method,
            tokenizer,
            tokendelta.Profile.from_tokenizer(tokenizer),
            seed=derive_seed(config.seed, "demonstrations"),
            count=config.dialogues,
            flaw_share=config.flaw_share,
        )
        return tokenizer, demonstrations


def main(argv: Sequence[str]) -> None:
    """The command."""
    description = "Make the planner that the main job starts from."
    config = parse_args(
        WarmstartConfig,
        argv,
        prog="apps/trainers/agentflow/laptop:warmstart",
        description=description,
    )
    warmstart(config)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

"""Makes the policy that the main job starts from.

    ./pants run apps/trainers/tau:warmstart -- --out runs/policy

1. A tokenizer is learned from synthetic cases (`tokenizer`, `synthetic`).
2. The cases are played by a scripted expert through the episode loop (`demonstrations`).
3. A model with random weights learns to copy, then to replay the expert (`supervised`).
4. Weights (bf16), tokenizer, chat template and `warmstart.json` with every setting and figure are
   written to a folder that AutoModelForCausalLM and AutoTokenizer load.

No real task, and no order or customer of the database, is seen. On a CPU the result is the same
for the same settings; a GPU adds up in another order. Minutes on one GPU, hours on two cores.
With its defaults this is the recipe of the shipped policy.

    ./pants run apps/trainers/tau:warmstart -- --hf-checkpoint smollm2 --dialogues 4000 \
        --replay-steps 200 --learning-rate 2e-4 --out runs/smollm2

goes on from a policy that is there, with its tokenizer and its chat template: step 3 is the replay
alone. What it shows the policy are the tools and the form of a task, with the expert's mistakes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from transformers import PreTrainedTokenizerFast
from turnwise.arguments import parse_args
from turnwise.command import PreflightError, run_command
from turnwise.config import CommandConfig
from turnwise.local.demonstrations import Demonstrations
from turnwise.local.policy import load_policy
from turnwise.local.supervised import Schedule, refuse_existing, save_policy
from turnwise.rollout import derive_seed

from apps.trainers.tau.demonstrations import corpus, record
from apps.trainers.tau.supervised import build_model, train_copying, train_replay
from apps.trainers.tau.tokenizer import VOCAB_SIZE, train_tokenizer

MAX_CORPUS_CASES = 2_000
"""Cases that the tokenizer is learned from; more of them add no new words."""
NEW = "hidden_size layers vocab_size copy_steps copy_rows copy_learning_rate".split()
"""Options of a policy that is made from nothing."""


class WarmstartConfig(CommandConfig):
    """Options of the warm start."""

    out: Path = Path("runs/policy")
    """Folder for the policy; must not exist yet."""
    hf_checkpoint: str | None = Field(default=None, min_length=1)
    """Go on from this policy, a folder or `smollm2`; a new one is made where not given."""
    seed: int = Field(default=1, ge=0)
    """Fixes cases, weights and order of the data."""
    dialogues: int = Field(default=100_000, ge=1)
    """Demonstrations to learn from."""
    mistake_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability that a demonstration holds a mistake."""
    hidden_size: int = Field(default=192, ge=64, multiple_of=64)
    """Width of the model."""
    layers: int = Field(default=4, ge=1)
    """Depth of the model."""
    vocab_size: int = Field(default=VOCAB_SIZE, ge=1_400, le=65_535)
    """Tokens of the tokenizer."""
    copy_steps: int = Field(default=2_000, ge=1)
    """Optimiser steps of the copying phase."""
    copy_rows: int = Field(default=256, ge=1)
    """Sequences of 64 tokens a step in it."""
    copy_learning_rate: float = Field(default=4e-3, gt=0)
    """Peak learning rate of the copying phase."""
    replay_steps: int = Field(default=5_000, ge=1)
    """Optimiser steps of the replay phase."""
    batch_tokens: int = Field(default=32_768, ge=1_024)
    """Tokens a step in it, padding included."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak learning rate of the replay phase."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    workers: int = Field(default=1, ge=1)
    """Processes that play the cases."""

    @model_validator(mode="after")
    def _check_shape(self) -> WarmstartConfig:
        fields = type(self).model_fields
        given = [name for name in NEW if getattr(self, name) != fields[name].default]
        if self.hf_checkpoint is not None and given:
            raise ValueError(
                f"{given[0].replace('_', '-')} is for a new policy, and hf-checkpoint names one"
                " that is there"
            )
        return self


def warmstart(config: WarmstartConfig) -> dict[str, Any]:
    """Makes the policy; returns the figures that are written to `warmstart.json`.

    Raises:
        ConfigError: the output folder exists, or the policy to go on from is none.
        PreflightError: a GPU was asked for and there is none.
    """
    refuse_existing(config.out)
    device = _device(config.device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    started = time.perf_counter()
    model: Any = None
    if config.hf_checkpoint is not None:
        loaded = load_policy(config.hf_checkpoint)
        model, tokenizer = loaded.model, loaded.tokenizer
    else:
        seed = derive_seed(config.seed, "tokenizer")
        texts = corpus(seed, min(MAX_CORPUS_CASES, config.dialogues))
        tokenizer = train_tokenizer(texts, vocab_size=config.vocab_size)
    _log(f"tokenizer of {len(tokenizer)} tokens {time.perf_counter() - started:.0f} s")
    demonstrations = record(
        tokenizer,
        seed=derive_seed(config.seed, "demonstrations"),
        count=config.dialogues,
        mistake_share=config.mistake_share,
        workers=config.workers,
    )
    _log(
        f"{len(demonstrations)} demonstrations, {len(demonstrations.ids)} tokens, "
        f"{demonstrations.flawed.mean():.3f} with a mistake {time.perf_counter() - started:.0f} s"
    )
    accuracies = {}
    if model is None:
        model = build_model(
            tokenizer,
            hidden_size=config.hidden_size,
            layers=config.layers,
            seed=derive_seed(config.seed, "weights"),
        )
        accuracies["copy_accuracy"] = _copy(config, model.to(device), tokenizer)
    accuracies["replay_accuracy"] = _replay(config, model.to(device), demonstrations)
    figures = {
        "settings": config.model_dump(mode="json", exclude={"out", "workers", "config"}),
        "parameters": model.num_parameters(),
        "tokens": len(demonstrations.ids),
        **accuracies,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "wall_s": round(time.perf_counter() - started),
    }
    save_policy(model, tokenizer, config.out, figures)
    _log(f"policy of {model.num_parameters()} parameters in {config.out}")
    return figures


def _copy(config: WarmstartConfig, model: Any, tokenizer: PreTrainedTokenizerFast) -> float:
    schedule = Schedule(
        steps=config.copy_steps,
        learning_rate=config.copy_learning_rate,
        seed=derive_seed(config.seed, "copy"),
    )
    reserved = len(tokenizer.added_tokens_decoder)
    return train_copying(model, schedule, reserved=reserved, rows=config.copy_rows, log=_log)


def _replay(config: WarmstartConfig, model: Any, demonstrations: Demonstrations) -> float:
    schedule = Schedule(
        steps=config.replay_steps,
        learning_rate=config.learning_rate,
        seed=derive_seed(config.seed, "replay"),
    )
    batch = config.batch_tokens
    return train_replay(model, schedule, demonstrations, batch_tokens=batch, log=_log)


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise PreflightError("device cuda was asked for, but torch finds no GPU: use --device cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def _log(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str]) -> None:
    """The command."""
    # Read by cuBLAS when it starts; without it its results differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    description = "Make the policy that the main job starts from."
    config = parse_args(
        WarmstartConfig, argv, prog="apps/trainers/tau:warmstart", description=description
    )
    warmstart(config)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

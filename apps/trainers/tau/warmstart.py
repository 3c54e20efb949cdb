"""Makes the policy that the main job starts from.

    ./pants run apps/trainers/tau:warmstart -- --out runs/policy

1. A tokenizer is learned from synthetic cases (`tokenizer`, `synthetic`).
2. The cases are played by a scripted expert through the episode loop (`demonstrations`).
3. A model with random weights learns to copy, then to replay the expert (`supervised`).
4. Weights (bf16), tokenizer, chat template and `warmstart.json` with every setting and figure are
   written to a folder that AutoModelForCausalLM and AutoTokenizer load.

With `--hf-checkpoint` a model that is there already replays the expert: nothing of step 1 and no
copying. `--replay-steps 0` writes it as it is: of `smollm2` that makes a folder for slime.

No real task, and no order or customer of the database, is seen. On a CPU the result is the same
for the same settings; a GPU adds up in another order. Minutes on one GPU, hours on two cores.
With its defaults this is the recipe of the shipped policy.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from transformers import PreTrainedTokenizerFast
from turnwise.arguments import parse_args
from turnwise.command import PreflightError, run_command
from turnwise.config import CommandConfig, ConfigError
from turnwise.local.demonstrations import Demonstrations
from turnwise.local.policy import load_policy
from turnwise.local.supervised import Schedule, refuse_existing, save_policy
from turnwise.rollout import derive_seed

from apps.trainers.tau.demonstrations import corpus, record
from apps.trainers.tau.supervised import build_model, train_copying, train_replay
from apps.trainers.tau.tokenizer import VOCAB_SIZE, train_tokenizer

MAX_CORPUS_CASES = 2_000
"""Cases that the tokenizer is learned from; more of them add no new words."""
FROM_SCRATCH = frozenset(
    ("hidden_size", "layers", "vocab_size", "copy_steps", "copy_rows", "copy_learning_rate")
)
"""Options that mean nothing beside `hf_checkpoint`."""


class WarmstartConfig(CommandConfig):
    """Options of the warm start."""

    out: Path = Path("runs/policy")
    """Folder for the policy; must not exist yet."""
    hf_checkpoint: str | None = None
    """What replays the expert in place of a model from scratch: a folder, or `smollm2`."""
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
    replay_steps: int = Field(default=5_000, ge=0)
    """Optimiser steps of the replay phase."""
    batch_tokens: int = Field(default=32_768, ge=1_024)
    """Tokens a step in it, padding included."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak learning rate of the replay phase."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    workers: int = Field(default=1, ge=1)
    """Processes that play the cases."""


def warmstart(config: WarmstartConfig) -> dict[str, Any]:
    """Makes the policy; returns the figures that are written to `warmstart.json`.

    Raises:
        ConfigError: the output folder exists, `hf_checkpoint` can't be a policy, or an option of a
            model from scratch stands beside it.
        PreflightError: a GPU was asked for and there is none.
    """
    refuse_existing(config.out)
    device = _device(config.device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    started = time.perf_counter()
    model, tokenizer = _start(config)
    _log(f"tokenizer of {len(tokenizer)} tokens {time.perf_counter() - started:.0f} s")
    learnt = _learn(config, model, tokenizer, device, started) if config.replay_steps else {}
    unused = {"hf_checkpoint"} if config.hf_checkpoint is None else FROM_SCRATCH
    kept = config.model_dump(mode="json", exclude={"out", "workers", "config", *unused})
    figures = {
        "settings": kept,
        "parameters": model.num_parameters(),
        **learnt,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "wall_s": round(time.perf_counter() - started),
    }
    save_policy(model, tokenizer, config.out, figures)
    _log(f"policy of {model.num_parameters()} parameters in {config.out}")
    return figures


def _start(config: WarmstartConfig) -> tuple[Any, Any]:
    """The model that is trained, on the CPU, and its tokenizer."""
    if config.hf_checkpoint is None:
        count = min(MAX_CORPUS_CASES, config.dialogues)
        texts = corpus(derive_seed(config.seed, "tokenizer"), count)
        tokenizer = train_tokenizer(texts, vocab_size=config.vocab_size)
        seed = derive_seed(config.seed, "weights")
        model = build_model(
            tokenizer, hidden_size=config.hidden_size, layers=config.layers, seed=seed
        )
        return model, tokenizer
    for name in sorted(config.model_fields_set & FROM_SCRATCH):
        raise ConfigError(
            f"--{name.replace('_', '-')}: is of a model from scratch; leave it out, or"
            " --hf-checkpoint"
        )
    policy = load_policy(config.hf_checkpoint)
    return policy.model, policy.tokenizer


def _learn(
    config: WarmstartConfig, model: Any, tokenizer: Any, device: torch.device, started: float
) -> dict[str, Any]:
    """Plays the cases and trains on them; the figures of both."""
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
    # Those who play are forks of this process, which has not touched the GPU so far.
    model.to(device)
    copy_accuracy, replay_accuracy = _train(config, model, tokenizer, demonstrations)
    return {
        "tokens": len(demonstrations.ids),
        "copy_accuracy": copy_accuracy,
        "replay_accuracy": replay_accuracy,
    }


def _train(
    config: WarmstartConfig,
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    demonstrations: Demonstrations,
) -> tuple[float | None, float]:
    """Both phases, or the second alone for a model that can read; their accuracies at the end."""
    copy_accuracy = None
    if config.hf_checkpoint is None:
        copying = Schedule(
            steps=config.copy_steps,
            learning_rate=config.copy_learning_rate,
            seed=derive_seed(config.seed, "copy"),
        )
        copy_accuracy = train_copying(
            model,
            copying,
            reserved=len(tokenizer.added_tokens_decoder),
            rows=config.copy_rows,
            log=_log,
        )
    replay = Schedule(
        steps=config.replay_steps,
        learning_rate=config.learning_rate,
        seed=derive_seed(config.seed, "replay"),
    )
    replay_accuracy = train_replay(
        model, replay, demonstrations, batch_tokens=config.batch_tokens, log=_log
    )
    return copy_accuracy, replay_accuracy


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

"""Makes the policy that the MemAgent trainer starts from.

./pants run apps/trainers/memagent/laptop:warmstart -- --out runs/reader

1. A tokenizer is learnt from generated texts and the prompts around them.
2. Readers with lapses say turns on texts of their own (`demonstrations`): on short ones, in which
   most sections hold something that counts, and on ones of all lengths up to a run's.
3. A model with random weights learns to copy, then to say what those readers said, on short texts
   first (`turnwise.local.supervised`).
4. Weights (bf16), tokenizer, chat template and `warmstart.json` with every setting and figure are
   written to a folder that AutoModelForCausalLM and AutoTokenizer load.

No text of a run's splits is seen. The result is the same for the same settings, thread count and
kind of processor. With its defaults this is the recipe of the shipped policy, which was made on one
GPU; a CPU takes hours.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tokendelta
import torch
from pydantic import Field
from transformers import PreTrainedTokenizerFast
from turnwise.arguments import parse_args
from turnwise.command import PreflightError, run_command
from turnwise.config import CommandConfig, field_names, load_toml
from turnwise.local.demonstrations import Demonstrations
from turnwise.local.supervised import (
    Schedule,
    build_model,
    copy_batches,
    fit,
    refuse_existing,
    replay_batches,
    save_policy,
)
from turnwise.rollout import derive_seed

from apps.trainers.memagent.laptop.demonstrations import Lapses, corpus, record
from apps.trainers.memagent.laptop.stories import SENTENCES
from apps.trainers.memagent.laptop.tokenizer import MAX_TOKENS, train_tokenizer
from apps.trainers.memagent.method import METHOD, MemAgentMethod
from apps.trainers.memagent.options import MemAgentOptions
from apps.trainers.memagent.prompts import make_prompts
from apps.trainers.memagent.template import Template

CORPUS_STORIES = 400
SHORT = 10
"""Sentences of a short text at most."""
COPY_TOKENS = 48
POOL, LOG_EVERY = 8, 100


class WarmstartConfig(CommandConfig):
    """Options of the warm start."""

    out: Path = Path("runs/reader")
    """Folder for the policy; must not exist yet."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it is trained; auto is a GPU if there is one, on which products are in bf16."""
    seed: int = Field(default=1, ge=0)
    """Fixes texts, weights and order of the data."""
    dialogues: int = Field(default=60_000, ge=1)
    """Demonstrations to learn from."""
    short_dialogues: int = Field(default=20_000, ge=1)
    """Those on short texts, which come first."""
    overlook: float = Field(default=0.15, ge=0, le=1)
    """Chance that a sentence that counts is overlooked."""
    forget: float = Field(default=0.03, ge=0, le=1)
    """Chance that a kept sentence that counts is forgotten."""
    clutter: float = Field(default=0.02, ge=0, le=1)
    """Chance that a sentence that does not count is written down."""
    hidden_size: int = Field(default=128, ge=64, multiple_of=64)
    """Width of the model."""
    layers: int = Field(default=4, ge=1)
    """Depth of the model."""
    copy_steps: int = Field(default=300, ge=1)
    """Optimiser steps of learning to copy."""
    copy_rows: int = Field(default=384, ge=1)
    """Sequences a step of learning to copy."""
    short_steps: int = Field(default=400, ge=1)
    """Optimiser steps on short texts."""
    steps: int = Field(default=1_300, ge=1)
    """Optimiser steps on all texts."""
    batch_tokens: int = Field(default=32_768, ge=512)
    """Tokens a step of those, padding included."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Peak learning rate of each part."""
    threads: int = Field(default=1, ge=1)
    """Threads for torch."""


def warmstart(config: WarmstartConfig) -> dict[str, Any]:
    """Makes the policy; returns the figures that are written to `warmstart.json`.

    Raises:
        ConfigError: the output folder exists.
        PreflightError: a GPU was asked for and there is none.
    """
    refuse_existing(config.out)
    device = _device(config.device)
    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    method = laptop_method()
    tokenizer: Any = make_tokenizer(method, config.seed)
    short = demonstrate(config, method, tokenizer, "short", config.short_dialogues, SHORT)
    full = demonstrate(config, method, tokenizer, "demonstrations", config.dialogues, SENTENCES)
    print(
        f"{len(tokenizer)} tokens; {len(full)} turns of {len(full.ids)} tokens,"
        f" {full.flawed.mean():.3f} flawed, {time.perf_counter() - started:.0f} s",
        flush=True,
    )
    model: Any = build_model(
        tokenizer,
        hidden_size=config.hidden_size,
        intermediate_size=3 * config.hidden_size,
        layers=config.layers,
        max_tokens=MAX_TOKENS,
        seed=derive_seed(config.seed, "weights") % 2**31,
    )
    model.to(device)
    accuracies = train(model, config, short, full, reserved=len(tokenizer.all_special_ids))
    figures = {
        "settings": config.model_dump(mode="json", exclude={"out", "config", "device"}),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "parameters": model.num_parameters(),
        "turns": len(full),
        "tokens": len(full.ids),
        **accuracies,
        "torch": torch.__version__,
        "wall_s": round(time.perf_counter() - started),
    }
    save_policy(model.to("cpu"), tokenizer, config.out, figures)
    print(f"policy of {model.num_parameters()} parameters in {config.out}")
    return figures


def demonstrate(
    config: WarmstartConfig,
    method: MemAgentMethod,
    tokenizer: Any,
    name: str,
    count: int,
    longest: int,
) -> Demonstrations:
    """Demonstrations on texts of at most `longest` sentences; `name` is in their seed."""
    prompts = make_prompts(method.options.prompt, method.options.order)
    return record(
        Template(tokendelta.Profile.from_tokenizer(tokenizer), prompts),
        tokenizer.eos_token_id,
        seed=derive_seed(config.seed, name),
        indices=range(count),
        lapses=Lapses(overlook=config.overlook, forget=config.forget, clutter=config.clutter),
        longest=longest,
    )


def train(
    model: Any,
    config: WarmstartConfig,
    short: Demonstrations,
    full: Demonstrations,
    *,
    reserved: int,
) -> dict[str, float]:
    """Trains in place; returns the token accuracy of each part's last steps."""

    def log(line: str) -> None:
        print(line, flush=True)

    def schedule(steps: int, name: str) -> Schedule:
        return Schedule(
            steps=steps,
            learning_rate=config.learning_rate,
            seed=derive_seed(config.seed, name),
        )

    first = schedule(config.copy_steps, "copies")
    copies = copy_batches(
        first, model.config.vocab_size, reserved, config.copy_rows, length=COPY_TOKENS
    )
    found = {"copy_accuracy": fit(model, first, copies, name="copy", log=log, log_every=LOG_EVERY)}
    for key, name, data, steps in (
        ("short_accuracy", "short order", short, config.short_steps),
        ("accuracy", "order", full, config.steps),
    ):
        plan = schedule(steps, name)
        replays = replay_batches(plan.seed, data, config.batch_tokens, pool=POOL)
        found[key] = fit(model, plan, replays, name=name, log=log, log_every=LOG_EVERY)
    return found


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise PreflightError("device cuda was asked for, but torch finds no GPU: use --device cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


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

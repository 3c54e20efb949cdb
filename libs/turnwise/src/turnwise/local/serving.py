"""The SGLang server that a run starts beside its trainer, from the run's options."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from turnwise.command import PreflightError
from turnwise.engine.served import Launch, ServedEngine
from turnwise.engine.server import SGLANG_LARGEST_PORT, free_port, is_free
from turnwise.local.options import TrainOptions
from turnwise.local.policy import LoadedPolicy
from turnwise.local.weights import weights_for_engine

RESERVED_TOKENS = 16
"""A served context is longer than the run's by these, so that it is the run that ends a turn."""

CACHES = 2
"""Whole conversations of all episodes in flight that the cache holds at most: SGLang would fill the
rest of its share, and of a large GPU under a small model that takes long."""


def make_sglang_engine(options: TrainOptions, policy: LoadedPolicy) -> ServedEngine:
    """An engine that `open` starts, or that speaks to `--engine-url`."""
    launch = None
    if options.engine_url is None:
        positions = int(policy.model.config.max_position_embeddings)
        launch = Launch(
            words=lambda folder, port: sglang_words(options, folder, port, positions),
            port=lambda: _port(options),
            start_s=options.engine_start_s,
        )
    return ServedEngine(
        launch,
        url=options.engine_url,
        weights=weights_for_engine,
        model=policy.model,
        policy=_folder_of(policy),
        device=torch.device(options.engine_device or options.device),
        dtype=getattr(torch, server_dtype(options)),
        max_context_tokens=options.rollout_max_context_len,
        keep=options.rollout_lag > 0,
    )


def sglang_words(options: TrainOptions, folder: Path, port: int, positions: int) -> list[str]:
    """The command of a server.

    Args:
        folder: Of the policy.
        positions: Of the model.
    """
    context = options.rollout_max_context_len + RESERVED_TOKENS
    words = {
        "model-path": str(folder),
        "host": "127.0.0.1",
        "port": str(port),
        "dtype": server_dtype(options),
        "context-length": str(min(context, positions)),
        "mem-fraction-static": f"{options.engine_share():g}",
        "max-running-requests": str(options.concurrency),
        "max-total-tokens": str(CACHES * options.concurrency * context),
        "random-seed": str(options.seed % 2**31),
        "weight-version": "0",
        # At info it writes a line for each batch.
        "log-level": "warning",
    }
    if options.device == "cpu":
        words["device"] = "cpu"
    elif gpu := options.engine_gpu():
        words["base-gpu-id"] = str(gpu)
    switches = ["--enable-memory-saver"] if options.offload_rollout else []
    for further in options.sglang_options:
        name, equals, value = further.partition("=")
        if equals:
            words[name] = value
        else:
            switches.append(f"--{name}")
    python = options.engine_python or sys.executable
    named = [word for name, value in words.items() for word in (f"--{name}", value)]
    return [python, "-m", "sglang.launch_server", *named, *switches]


def server_dtype(options: TrainOptions) -> str:
    """What the server computes in: SGLang's kernels for CUDA have no float32."""
    return "float32" if options.device == "cpu" else "bfloat16"


def _port(options: TrainOptions) -> int:
    if options.engine_port is None:
        return free_port(SGLANG_LARGEST_PORT)
    if not is_free(options.engine_port):
        raise PreflightError(
            f"--engine-port {options.engine_port} is taken; name another one, or leave it out for"
            " any that is free"
        )
    return options.engine_port


def _folder_of(policy: LoadedPolicy) -> Callable[[Path], Path]:
    def folder(logs: Path) -> Path:
        if Path(policy.name).is_dir():
            return Path(policy.name).absolute()
        written = logs / "engine-policy"
        policy.model.save_pretrained(written)
        policy.tokenizer.save_pretrained(written)
        return written

    return folder

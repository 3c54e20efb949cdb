"""The trainer alone on one GPU: tokens per second and peak memory of a GRPO step, by its options.

    python -m benchmarks.one_gpu.trainer --out trainer.json

Two published shapes with random weights (no weights are downloaded), 8 prompts x 8 rollouts that
are made up: a start that all have in common, a task that a group has in common, and turns of which
every other one was sampled. A step is what `turnwise.local.trainer` makes of it: log-probs of the
second half, an update on the first, an update on the second. What engine and trainer would differ
in plays no part: the log-probs of the rollout are random, the loss is a number.

Each way runs once to warm up and then `STEPS` times. `tokens` counts all tokens of all rollouts,
prompts included, as a padded trainer would compute them; `computed` those that were, since a common
start is computed once. `padded` is transformers without any of this: right-padded batches with
gradient checkpointing off and on, all logits at once, bfloat16 with the same optimiser.

`predicted` is `turnwise.local.memory`'s, `peak` torch.cuda.max_memory_allocated. `agreement` holds
kernels against each other on this machine, `exactness` (`benchmarks.one_gpu.exact`)
says what is equal bit for bit. The file is written after each way; what does not run says why. Ways
that need peft or bitsandbytes are skipped without it.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokendelta
import torch
from numpy.typing import NDArray
from torch import Tensor
from turnwise.local import attention, forward
from turnwise.local.adapters import add_adapters
from turnwise.local.memory import ModelShape, predict_memory
from turnwise.local.options import TrainOptions
from turnwise.local.update import TrainRow, Updater, policy_loss, train_rows

from benchmarks.one_gpu.shapes import MODELS, SAMPLES, SEED, Workload, make

STEPS = 2
PADDED_ROWS = 8
"""Rollouts of a padded micro-batch."""

Json = dict[str, Any]
Floats = NDArray[np.float64]


WAYS: Mapping[str, Json] = {
    "bfloat16": {},
    "recompute": {"recompute_granularity": "full"},
    "lora": {"lora_rank": 16},
    "lora, recompute": {"lora_rank": 16, "recompute_granularity": "full"},
    "offload": {"optimizer_cpu_offload": True},
    "adam8bit": {"optimizer": "adam8bit"},
    "chunks of 128": {"log_probs_chunk_size": 128},
    "one chunk": {"log_probs_chunk_size": 1 << 20},
    "sdpa": {},
    "no common start": {},
    "float32": {"dtype": "float32"},
}
LATER = (
    *("lora, recompute", "sdpa", "no common start", "chunks of 128", "one chunk", "float32"),
    *("padded", "agreement"),
)
NEEDS = {"lora": "peft", "lora, recompute": "peft", "adam8bit": "bitsandbytes"}


def options_of(way: Mapping[str, Any], workload: Workload, device: str) -> TrainOptions:
    """The run's options of a way to train."""
    given = {"dtype": "bfloat16", **way}
    return TrainOptions(
        hf_checkpoint="random",
        device="cuda" if device == "cuda" else "cpu",
        max_tokens_per_gpu=workload.row,
        rollout_max_context_len=min(workload.row, 8192),
        **given,
    )


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Switches off what a way is about."""
    kernel, shared = attention.packed_kernel, attention.SHARE_MIN
    try:
        if name == "sdpa":
            attention.packed_kernel = lambda *_: "sdpa"
        if name == "no common start":
            attention.SHARE_MIN = 1 << 30
        yield
    finally:
        attention.packed_kernel, attention.SHARE_MIN = kernel, shared


def halves(samples: Sequence[tokendelta.Sample], row: int) -> list[list[TrainRow]]:
    """The rows of two updates."""
    made = []
    for part in (samples[::2], samples[1::2]):
        advantages, weights = _scalars(part)
        made.append(train_rows(part, advantages, weights, max_tokens=row))
    return made


def _scalars(part: Sequence[tokendelta.Sample]) -> tuple[Floats, Floats]:
    """Advantages and weights of the samples of an update."""
    tokens = sum(sample.trained_tokens for sample in part)
    advantages = np.random.default_rng(SEED).normal(size=len(part))
    return advantages, np.full(len(part), 1 / tokens)


def step(updater: Updater, parts: Sequence[Sequence[TrainRow]]) -> float:
    """A training step; returns its loss."""
    updater.logprobs(parts[1])
    return sum(updater.update(part).loss for part in parts)


def padded_step(updater: Updater, samples: Sequence[tokendelta.Sample]) -> float:
    """The same by transformers alone: right-padded batches, logits of every token."""
    total = 0.0
    for part in (samples[::2], samples[1::2]):
        updater.model.train()
        updater.optimizer.zero_grad()
        advantages, weights = _scalars(part)
        for at in range(0, len(part), PADDED_ROWS):
            own = slice(at, at + PADDED_ROWS)
            (row,) = train_rows(part[own], advantages[own], weights[own], max_tokens=1 << 24)
            logprobs = _padded_logprobs(updater.model, row.batch)
            loss, _ = policy_loss(logprobs, logprobs, row, updater.settings)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        updater.optimizer.clip(1.0)
        updater.optimizer.step()
    return total


def _padded_logprobs(model: Any, batch: tokendelta.MicroBatch) -> Tensor:
    bounds = batch.cu_seqlens.tolist()
    lengths = np.diff(batch.cu_seqlens)
    ids = np.zeros((len(lengths), int(lengths.max())), np.int64)
    mask = np.zeros_like(ids)
    trained = np.zeros_like(ids, dtype=bool)
    for place, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        ids[place, : end - begin] = batch.ids[begin:end]
        mask[place, : end - begin] = 1
        trained[place, : end - begin] = batch.loss_mask[begin:end] != 0
    there = [torch.from_numpy(one).to(model.device) for one in (ids, mask, trained)]
    logits = model(input_ids=there[0], attention_mask=there[1]).logits[:, :-1].float()
    found = logits.log_softmax(-1).gather(-1, there[0][:, 1:, None])[..., 0]
    trained_logprobs: Tensor = found[there[2][:, 1:]]
    return trained_logprobs


def measure(
    model: Callable[[], Any], name: str, workload: Workload, device: str, steps: int = STEPS
) -> Json:
    """One way to train one model."""
    options = options_of(WAYS[name], workload, device)
    made = make(model, options.weight_dtype(), device)
    samples = workload.samples(made.config.vocab_size)
    shape = ModelShape.of(made.config)
    if options.lora_rank:
        add_adapters(made, rank=options.lora_rank, alpha=options.lora_alpha, seed=SEED)
    with forced(name):
        updater = Updater(made, options.update_settings())
        parts = halves(samples, workload.row)
        bounds = [row.batch for part in parts for row in part]
        # The kernel only says which tensors are made: what is computed is the same.
        computed = sum(
            len(attention.plan(one.ids, one.cu_seqlens, torch.device("cpu"), "varlen").tokens)
            for one in bounds
        )
        figures = _timed(lambda: step(updater, parts), samples, device, steps)
        predicted = predict_memory(shape, options, embedded_engine=False)
        return {
            **figures,
            "computed": computed,
            "rows": len(bounds),
            "kernel": forward.kernel_of(made),
            "predicted": predicted.total,
            "parts": dict(predicted.parts),
        }


def measure_padded(
    model: Callable[[], Any], workload: Workload, device: str, recompute: bool, steps: int = STEPS
) -> Json:
    """transformers, padded."""
    options = options_of({}, workload, device)
    made = make(model, options.weight_dtype(), device)
    samples = workload.samples(made.config.vocab_size)
    updater = Updater(made, replace(options.update_settings(), recompute=recompute))
    made.set_attn_implementation("sdpa")
    return _timed(lambda: padded_step(updater, samples), samples, device, steps)


def _timed(
    work: Callable[[], float], samples: Sequence[tokendelta.Sample], device: str, steps: int
) -> Json:
    cuda = device == "cuda"
    begun = time.perf_counter()
    work()
    if cuda:
        torch.cuda.synchronize()
    first_s = time.perf_counter() - begun
    seconds = []
    for _ in range(steps):
        begun = time.perf_counter()
        loss = work()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    tokens = sum(len(sample.ids) for sample in samples)
    return {
        "tokens": tokens,
        "trained": sum(sample.trained_tokens for sample in samples),
        "loss": loss,
        "first_s": first_s,
        "step_s": seconds,
        "tokens_per_s": tokens / min(seconds),
        "peak": torch.cuda.max_memory_allocated() if cuda else None,
    }


def agreement(model: Callable[[], Any], workload: Workload, device: str) -> Json:
    """What should be equal on this machine, up to rounding or exactly."""
    made = make(model, "bfloat16", device)
    samples = workload.samples(made.config.vocab_size)[: 2 * SAMPLES]
    (rows, _) = halves(samples, workload.row)
    found = {name: gradients_of(made, rows[0], name) for name in ("varlen", "sdpa", "padded")}
    told: Json = {}
    for name in ("varlen", "padded"):
        logprobs, gradients = found[name]
        gap = (logprobs - found["sdpa"][0]).abs()
        told[f"{name} against sdpa"] = {
            "largest": float(gap.max()),
            "mean": float(gap.mean()),
            "gradient": _relative(gradients, found["sdpa"][1]),
        }
    return told


def gradients_of(model: Any, row: TrainRow, name: str) -> tuple[Tensor, list[Tensor]]:
    """Log-probs of a row and the gradients of their weighted sum, by a kernel or padded."""
    model.zero_grad()
    if name == "padded":
        model.set_attn_implementation("sdpa")
        logprobs = _padded_logprobs(model, row.batch)
    else:
        forward.prepare(model)
        with forced(name):
            logprobs, _ = forward.token_logprobs(model, row.batch)
    weights = torch.from_numpy(row.advantages * row.weights).to(logprobs.device)
    (logprobs * weights).sum().backward()  # type: ignore[no-untyped-call]
    return logprobs.detach(), [weight.grad.float() for weight in model.parameters()]


def _relative(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Norm of the difference over the norm."""
    pairs = zip(one, other, strict=True)
    gap = sum(float((a - b).square().sum()) for a, b in pairs)
    return float((gap / sum(float(b.square().sum()) for b in other)) ** 0.5)


def free() -> None:
    """Gives back what the way before held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def jobs(workload: Workload, device: str) -> Iterator[tuple[str, str, Callable[[], Json]]]:
    """What is measured, the important first: model, way, work."""
    from benchmarks.one_gpu.exact import exactness

    for name, model in MODELS.items():
        yield name, "exactness", partial(exactness, model, workload, device)
        yield name, "bfloat16", partial(measure, model, "bfloat16", workload, device)
    for way in ("recompute", "lora", "offload", "adam8bit", "padded, recompute", *LATER):
        for name, model in MODELS.items():
            if way == "agreement":
                yield name, way, partial(agreement, model, workload, device)
            elif way.startswith("padded"):
                recompute = way != "padded"
                yield name, way, partial(measure_padded, model, workload, device, recompute)
            else:
                yield name, way, partial(measure, model, way, workload, device)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--limit-s", type=float, default=55.0, help="no way begins after this")
    parser.add_argument("--ways", nargs="+", metavar="WAY", help="these alone; all by default")
    given = parser.parse_args()
    until = time.monotonic() + given.limit_s
    torch.set_num_threads(1 if given.device == "cuda" else torch.get_num_threads())
    results: Json = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if given.device == "cuda" else "cpu",
        "models": {name: {} for name in MODELS},
    }
    workload = Workload()
    for name, way, work in jobs(workload, given.device):
        if given.ways is not None and way not in given.ways:
            continue
        if time.monotonic() > until:
            found: Json = {"skipped": f"{given.limit_s:.0f} s were over"}
        elif (package := NEEDS.get(way)) and importlib.util.find_spec(package) is None:
            found = {"skipped": f"{package} is not installed"}
        else:
            free()
            begun = time.perf_counter()
            try:
                found = work()
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {error}"}
            found["all_s"] = time.perf_counter() - begun
        results["models"][name][way] = found
        given.out.write_text(json.dumps(results, indent=1))
        print(f"{name}: {way}: {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()

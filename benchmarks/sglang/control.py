"""Requests that are aborted or given up, and weights that change under running episodes."""

from __future__ import annotations

import asyncio
import copy
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from turnwise.engine import SamplingParams
from turnwise.engine.http import HttpError
from turnwise.engine.sglang import SGLangEngine
from turnwise.episode import DeadlineExceeded

from benchmarks.sglang.bench import SHIPPED, Bench, scored
from benchmarks.sglang.reference import Scored, compare
from benchmarks.sglang.rollout import half_done, settle, start

LONG = SamplingParams(max_new_tokens=1900)
REQUESTS = 256
RUNNING_S = 0.4
"""How long requests run before they are aborted or given up."""
GIVEN_UP_S = 15.0
NOISE = 0.2
"""Of a matrix's standard deviation: enough to tell the weights apart by their log-probs."""


async def measure_control(bench: Bench) -> dict[str, Any]:
    """Long requests that never meet a stop token: aborted, and past their deadline."""
    prompt = np.arange(100, 164, dtype=np.int32)
    more: dict[str, Any] = {"pool": bench.pool, "sampling": {"ignore_eos": True}}
    engine = SGLangEngine(bench.url, **more)
    work = [
        asyncio.create_task(engine.generate(prompt, LONG, session_id=f"long-{number}"))
        for number in range(REQUESTS)
    ]
    await asyncio.sleep(RUNNING_S)
    begun = time.perf_counter()
    await engine.abort()
    turns = await asyncio.gather(*work)
    back_s = time.perf_counter() - begun
    lengths = [len(turn.ids) for turn in turns]
    begun = time.perf_counter()
    whole = await engine.generate(prompt, LONG, session_id="whole")
    whole_s = time.perf_counter() - begun
    return {
        "abort": {
            "requests": REQUESTS,
            "finish": dict(Counter(turn.finish for turn in turns)),
            "tokens_when_aborted": [min(lengths), max(lengths)],
            "until_all_back_s": back_s,
        },
        "whole_request": {"tokens": len(whole.ids), "finish": whole.finish, "wall_s": whole_s},
        "given_up": await _give_up(bench, SGLangEngine(bench.url, deadline_s=RUNNING_S, **more)),
    }


async def _give_up(bench: Bench, engine: SGLangEngine) -> dict[str, Any]:
    """Deadlines pass; the server is idle again as soon as it takes a flush."""
    prompt = np.arange(100, 164, dtype=np.int32)
    work = [engine.generate(prompt, LONG, session_id=f"late-{n}") for n in range(REQUESTS)]
    ended = await asyncio.gather(*work, return_exceptions=True)
    begun = time.perf_counter()
    while not (idle := await bench.flush()) and time.perf_counter() - begun < GIVEN_UP_S:
        await asyncio.sleep(0.01)
    return {
        "requests": REQUESTS,
        "deadlines_exceeded": sum(isinstance(one, DeadlineExceeded) for one in ended),
        "server_idle_after_s": time.perf_counter() - begun if idle else None,
    }


async def measure_weights(bench: Bench) -> dict[str, Any]:
    """New weights in the middle of a rollout, as slime sends them and from disk.

    Each turn's log-probs are compared with the weights whose version the server put on it.
    """
    first = bench.models[bench.dtype]
    second = _perturbed(first)
    folder = bench.folder / "perturbed"
    second.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(SHIPPED / name, folder / name)
    tensors = await asyncio.to_thread(_serialize, second)
    found: dict[str, Any] = {}
    disk = "update_weights_from_disk"
    try:
        found["from_disk"] = await _swap(
            bench,
            {"default": first, "1": second},
            lambda: _post(bench, disk, _disk(folder, "1")),
        )
        found["from_disk_abort_all_requests"] = await _swap(
            bench,
            {"1": second, "2": first},
            lambda: _post(bench, disk, {**_disk(SHIPPED, "2"), "abort_all_requests": True}),
        )
        found["from_tensor_with_pause"] = await _swap(
            bench, {"2": first, "3": second}, lambda: _from_tensor(bench, tensors, "3")
        )
    finally:
        await _post(bench, disk, _disk(SHIPPED, "4"))
    return found


def _perturbed(model: Any) -> Any:
    changed = copy.deepcopy(model)
    draws = torch.Generator(model.device).manual_seed(1)
    with torch.no_grad():
        for weight in changed.parameters():
            if weight.ndim == 2:
                noise = torch.randn(weight.shape, generator=draws, device=weight.device)
                weight.add_((NOISE * weight.float().std() * noise).to(weight.dtype))
    return changed


def _disk(folder: Path, version: str) -> dict[str, Any]:
    return {"model_path": str(folder), "weight_version": version}


async def _post(bench: Bench, path: str, payload: dict[str, Any]) -> Any:
    return await bench.pool.post(f"{bench.url}/{path}", payload)


@dataclass(frozen=True)
class Tensors:
    """A model's weights as slime hands them over.

    Attributes:
        serialized: Names, places, and a handle of the memory.
        memory: What the handle points to; must outlive the update.
    """

    serialized: str
    memory: torch.Tensor


def _serialize(model: Any) -> Tensors:
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    named = [(name, weight.detach()) for name, weight in model.named_parameters()]
    bucket = FlattenedTensorBucket(named_tensors=named)
    content = {"flattened_tensor": bucket.flattened_tensor, "metadata": bucket.metadata}
    return Tensors(
        MultiprocessingSerializer.serialize(content, output_str=True), bucket.flattened_tensor
    )


async def _from_tensor(bench: Bench, tensors: Tensors, version: str) -> Any:
    """slime's steps: pause, flush, the flattened tensors through shared GPU memory, continue."""
    payload = {
        "serialized_named_tensors": [tensors.serialized],
        "load_format": "flattened_bucket",
        "flush_cache": False,
        "weight_version": version,
    }
    await _post(bench, "pause_generation", {})
    flushed = await bench.flush()
    try:
        answer = await _post(bench, "update_weights_from_tensor", payload)
    finally:
        await _post(bench, "continue_generation", {})
    return {**answer, "flushed": flushed}


async def _swap(
    bench: Bench, models: dict[str, Any], update: Callable[[], Awaitable[Any]]
) -> dict[str, Any]:
    """A rollout with an update once half of its episodes have ended."""
    groups = bench.groups()
    args = bench.args(partial_rollout=True)
    rollout = await start(args, groups)
    await half_done(groups, rollout)
    begun = time.perf_counter()
    try:
        answer = await update()
    except HttpError as error:
        answer = {"error": str(error)}
    updated_s = time.perf_counter() - begun
    done = await rollout
    samples = [sample for group in done for sample in group]
    kept = [sample for sample in samples if not sample.remove_sample]
    return {
        "answer": answer,
        "update_s": updated_s,
        **settle(),
        "turns_by_version": dict(Counter(v for one in samples for v in one.weight_versions)),
        "episodes_of_several_versions": sum(len(set(one.weight_versions)) > 1 for one in samples),
        "logprobs_by_version": {
            version: compare({_name(version, said): models[said] for said in models}, turns)
            for version, turns in _by_version(kept).items()
        },
    }


def _name(version: str, of_weights: str) -> str:
    return "weights it says" if version == of_weights else f"weights {of_weights}"


def _by_version(samples: list[Any]) -> dict[str, list[Scored]]:
    """Each turn as a sequence of its own, under the version that the server put on it."""
    found: dict[str, list[Scored]] = defaultdict(list)
    for sample in samples:
        whole = scored(sample)
        runs = groupby(enumerate(whole.places), key=lambda pair: pair[1] - pair[0])
        for version, (_, run) in zip(sample.weight_versions, runs, strict=True):
            pairs = list(run)
            places = [place for _, place in pairs]
            logprobs = [whole.logprobs[number] for number, _ in pairs]
            found[version].append(Scored(whole.ids[: places[-1] + 1], places, logprobs))
    return dict(found)

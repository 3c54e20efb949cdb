"""The embedded backend against transformers used as its documentation shows it.

Rollouts: `generate` once a turn over the left-padded batch of all episodes, without log-probs.
Training: right-padded micro-batches of 8, logits everywhere, the same loss and optimiser.
Each benchmark's first row is ours; the factors in brackets are the ratios of one run. To measure:

    pytest benchmarks/local --benchmark-enable --benchmark-timer=time.process_time
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from turnwise.engine import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.local.update import TrainRow, Updater, UpdateSettings, policy_loss, train_rows

from .workload import Workload, make_policy, make_samples, make_workload

MICRO_BATCH = 8


def turnwise_rollouts(model: Any) -> Callable[[Workload], int]:
    engine = TorchEngine(model, rows=64, context=1024)

    async def episode(workload: Workload, index: int) -> int:
        ids, sampled = workload.prompts[index], 0
        for turn, length in enumerate(workload.lengths[index].tolist()):
            params = SamplingParams(max_new_tokens=length, seed=100 * index + turn)
            completion = await engine.generate(ids, params, session_id=str(index))
            sampled += len(completion.ids)
            ids = np.concatenate([ids, completion.ids, workload.observations[index][turn]])
        await engine.release(str(index))
        return sampled

    async def run(workload: Workload) -> int:
        await engine.clear()
        episodes = (episode(workload, index) for index in range(len(workload.prompts)))
        return sum(await asyncio.gather(*episodes))

    return lambda workload: asyncio.run(run(workload))


@torch.inference_mode()
def generate_turn_by_turn(model: Any, workload: Workload) -> int:
    histories, sampled = list(workload.prompts), 0
    for turn in range(workload.lengths.shape[1]):
        longest = max(len(ids) for ids in histories)
        ids = torch.zeros(len(histories), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, history in enumerate(histories):
            ids[row, longest - len(history) :] = torch.from_numpy(history.astype(np.int64))
            mask[row, longest - len(history) :] = 1
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=int(workload.lengths[:, turn].max()),
            eos_token_id=None,
            pad_token_id=0,
        )
        for row, length in enumerate(workload.lengths[:, turn].tolist()):
            new = out[row, longest : longest + length].numpy().astype(np.int32)
            sampled += len(new)
            histories[row] = np.concatenate([histories[row], new, workload.observations[row][turn]])
    return sampled


def transformers_rollouts(model: Any) -> Callable[[Workload], int]:
    return lambda workload: generate_turn_by_turn(model, workload)


@pytest.mark.parametrize("varied", [False, True], ids=["equal turns", "varied turns"])
@pytest.mark.parametrize("make", [turnwise_rollouts, transformers_rollouts])
def test_rollout(
    benchmark: BenchmarkFixture, make: Callable[[Any], Callable[[Workload], int]], varied: bool
) -> None:
    workload = make_workload(64 if benchmark.enabled else 4, varied=varied)
    benchmark.group = f"rollout, {'varied' if varied else 'equal'} turns"
    run = make(make_policy())
    sampled = benchmark.pedantic(  # type: ignore[no-untyped-call]
        run, args=(workload,), rounds=3, warmup_rounds=1 if benchmark.enabled else 0
    )
    assert sampled == workload.sampled_tokens
    note_rate(benchmark, sampled)


def turnwise_update(model: Any, settings: UpdateSettings) -> Callable[[list[TrainRow]], int]:
    updater = Updater(model, settings)
    return lambda rows: updater.update(rows).trained_tokens


def transformers_update(model: Any, settings: UpdateSettings) -> Callable[[list[TrainRow]], int]:
    """One sequence after another of the same rows, padded to micro-batches."""
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=(settings.adam_beta1, settings.adam_beta2),
        weight_decay=settings.weight_decay,
    )

    def update(rows: list[TrainRow]) -> int:
        optimizer.zero_grad()
        trained = 0
        for row in rows:
            bounds = row.batch.cu_seqlens.tolist()
            spans = list(zip(bounds, bounds[1:], strict=False))
            logprobs = []
            for at in range(0, len(spans), MICRO_BATCH):
                logprobs.append(padded_logprobs(model, row, spans[at : at + MICRO_BATCH]))
            values = torch.cat(logprobs)
            loss, _ = policy_loss(values, torch.zeros_like(values), row, settings)
            loss.backward()  # type: ignore[no-untyped-call]
            trained += len(values)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_grad)
        optimizer.step()
        return trained

    return update


def padded_logprobs(model: Any, row: TrainRow, spans: list[tuple[int, int]]) -> torch.Tensor:
    longest = max(end - begin for begin, end in spans)
    ids = torch.zeros(len(spans), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    trained = torch.zeros(len(spans), longest, dtype=torch.bool)
    for place, (begin, end) in enumerate(spans):
        ids[place, : end - begin] = torch.from_numpy(row.batch.ids[begin:end].astype(np.int64))
        mask[place, : end - begin] = 1
        trained[place, : end - begin] = torch.from_numpy(row.batch.loss_mask[begin:end] == 1)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    logprobs: torch.Tensor = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    kept: torch.Tensor = logprobs[trained[:, 1:]]
    return kept


@pytest.mark.parametrize("make", [turnwise_update, transformers_update])
def test_update(
    benchmark: BenchmarkFixture,
    make: Callable[[Any, UpdateSettings], Callable[[list[TrainRow]], int]],
) -> None:
    samples = make_samples(make_workload(64 if benchmark.enabled else 4, varied=True))
    trained = sum(sample.trained_tokens for sample in samples)
    rows = train_rows(
        samples,
        np.linspace(-1, 1, len(samples)),
        np.full(len(samples), 1 / trained),
        max_tokens=9216,
    )
    benchmark.group = "update"
    update = make(make_policy(), UpdateSettings(lr=1e-4))
    counted = benchmark.pedantic(  # type: ignore[no-untyped-call]
        update, args=(rows,), rounds=3, warmup_rounds=1 if benchmark.enabled else 0
    )
    assert counted == trained
    note_rate(benchmark, sum(len(sample.ids) for sample in samples))


def note_rate(benchmark: BenchmarkFixture, tokens: int) -> None:
    """Tokens per second of the timer, for the JSON report."""
    if benchmark.enabled and benchmark.stats is not None:
        benchmark.extra_info["tokens_per_s"] = tokens / benchmark.stats.stats.min

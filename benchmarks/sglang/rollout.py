"""Episodes through slime's hooks: the ledger, scores, log-probs, prefix cache, abort and resume."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    GenerateState,
    generate_and_rm_group,
)
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import to_train_data
from turnwise.engine.sglang import SGLangEngine
from turnwise.slime import accounts
from turnwise.slime.replay import EpisodeReplay
from turnwise.slime.samples import REPLAY

from benchmarks.sglang.agreement import compare_greedy
from benchmarks.sglang.bench import Bench, scored
from benchmarks.sglang.reference import compare

POLL_S = 0.002


class Request(NamedTuple):
    """What the server said of one request, in tokens."""

    prompt: int
    cached: int
    sampled: int


async def start(args: Any, groups: Sequence[list[Any]]) -> asyncio.Future[list[list[Any]]]:
    """All groups at once, as slime submits them."""
    params = dict(GenerateState(args).sampling_params)
    work = [generate_and_rm_group(args, group, dict(params)) for group in groups]
    return asyncio.gather(*work)


async def half_done(groups: Sequence[list[Any]], rollout: asyncio.Future[Any]) -> None:
    """Returns when half of the episodes that were started have ended."""
    samples = [sample for group in groups for sample in group]
    while not rollout.done():
        ended = sum(sample.status is not Sample.Status.PENDING for sample in samples)
        if ended >= len(samples) // 2:
            return
        await asyncio.sleep(POLL_S)


def settle() -> dict[str, Any]:
    """Closes the period and checks that it balances."""
    period = accounts.TRAIN.take()
    period.check()
    metrics = period.metrics()
    kept = ("coverage", "score_mean", "score_stderr", "episode/wall_s", "episode/wall_max_s")
    more = ("episode/turns", "episode/tool_calls", "episode/sampled_tokens", "loop_lag_max_s")
    errors = Counter(one.ending.error for one in period.ended if one.ending.error)
    return {
        "equation": period.equation(),
        "stopped": period.ledger.as_dict()["stopped"],
        **{name: metrics[name] for name in (*kept, *more) if name in metrics},
        "errors": dict(errors.most_common(3)),
    }


async def measure_rollout(bench: Bench) -> dict[str, Any]:
    """A rollout of all episodes into an empty cache, and its training data."""
    args = bench.args()
    await _warm_up(bench, args)
    await bench.flush()
    groups = bench.groups()
    begun = time.perf_counter()
    done = await (await start(args, groups))
    wall_s = time.perf_counter() - begun
    data = to_train_data(args, done)
    samples = [sample for group in done for sample in group]
    kept = [sample for sample in samples if not sample.remove_sample]
    return {
        "episodes": len(samples),
        "wall_s": wall_s,
        **settle(),
        "status": dict(Counter(sample.status.value for sample in samples)),
        "rows_of_training_data": len(data["tokens"]),
        "groups_with_both_outcomes": sum(
            len({sample.reward for sample in group} - {None}) > 1 for group in done
        ),
        "weight_versions": dict(Counter(v for one in samples for v in one.weight_versions)),
        "logprobs": compare(bench.models, [scored(sample) for sample in kept]),
        "prefix_cache_by_turn": cache_by_turn([calls(sample) for sample in samples]),
        "greedy": await compare_greedy(bench, _prompts([group[0] for group in done])),
    }


def _prompts(samples: Sequence[Any]) -> list[NDArray[np.int32]]:
    """What stood before each sampled turn of the samples."""
    found = []
    for sample in samples:
        places = scored(sample).places
        begins = [place for place in places if place - 1 not in places]
        found += [np.array(sample.tokens[:begin], dtype=np.int32) for begin in begins]
    return found


async def _warm_up(bench: Bench, args: Any) -> None:
    await (await start(args, bench.groups()[:1]))
    accounts.TRAIN.take()


def calls(sample: Any) -> list[Request]:
    """The requests of a sample."""
    events = getattr(sample, "trace", {"events": []})["events"]
    facts = [event["attrs"] for event in events if event["name"] == "sglang_generate"]
    return [
        Request(one["prompt_tokens"], one.get("cached_tokens", 0), one["completion_tokens"])
        for one in facts
    ]


def cache_by_turn(episodes: Sequence[Sequence[Request]]) -> list[dict[str, float | None]]:
    """For each turn number: requests, mean prompt, and the share of it that was cached.

    `own_share` is the share that the episode's turn before left in the cache: its prompt and all
    of its answer but the last token. More is cached where other episodes wrote the same.
    """
    rows: list[dict[str, float | None]] = []
    for turn in range(max(map(len, episodes), default=0)):
        here = [one for one in episodes if len(one) > turn]
        prompt = sum(one[turn].prompt for one in here)
        own = sum(one[turn - 1].prompt + one[turn - 1].sampled - 1 for one in here)
        rows.append(
            {
                "turn": turn + 1,
                "requests": len(here),
                "prompt_tokens": prompt / len(here),
                "cached_share": sum(one[turn].cached for one in here) / prompt,
                "own_share": own / prompt if turn else None,
            }
        )
    return rows


async def measure_abort(bench: Bench) -> dict[str, Any]:
    """slime's abort in the middle of a rollout, and the next rollout, which goes on from there."""
    args = bench.args(partial_rollout=True)
    engine = SGLangEngine(bench.url, pool=bench.pool)
    state = GenerateState(args)
    groups = bench.groups()
    await bench.flush()
    rollout = await start(args, groups)
    await half_done(groups, rollout)
    begun = time.perf_counter()
    state.aborted = True
    try:
        await engine.abort()
        done = await rollout
    finally:
        state.reset()
    settled_s = time.perf_counter() - begun
    aborted = settle()
    samples = [sample for group in done for sample in group]
    cut = [sample for sample in samples if sample.metadata.get(REPLAY)]
    before = {sample.index: list(sample.tokens) for sample in cut}
    turns = [len(EpisodeReplay(sample.metadata[REPLAY]).turns) for sample in cut]
    resumed = await (await start(args, done))
    second = settle()
    samples = [sample for group in resumed for sample in group]
    kept = [sample for sample in samples if not sample.remove_sample]
    wholes = {sample.index: sample.tokens for sample in samples}
    with_turns = [index for index, count in zip(before, turns, strict=True) if count]
    return {
        "abort_until_all_back_s": settled_s,
        "aborted": aborted,
        "with_record": len(cut),
        "finished_turns_kept": sum(turns),
        "resumed": second,
        "episodes_with_turns_before": len(with_turns),
        "of_them_begin_with_the_same_ids": sum(
            wholes[index][: len(before[index])] == before[index] for index in with_turns
        ),
        "status": dict(Counter(sample.status.value for sample in samples)),
        "logprobs": compare(bench.models, [scored(sample) for sample in kept]),
    }

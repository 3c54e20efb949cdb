"""Ids in, ids and log-probs out: our client against the server, transformers and `TorchEngine`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokendelta
from numpy.typing import NDArray
from taubench.prompts import prompt_view
from taubench.users import compact_user
from turnwise.engine import Completion, Engine, SamplingParams
from turnwise.engine.sglang import SGLangEngine
from turnwise.engine.torch_engine import TorchEngine

from benchmarks.sglang.bench import CONTEXT, MAX_NEW_TOKENS, Bench
from benchmarks.sglang.reference import Scored, compare, difference

SAMPLINGS = {
    "temperature 1": SamplingParams(temperature=1.0, max_new_tokens=MAX_NEW_TOKENS),
    "temperature 0.7": SamplingParams(temperature=0.7, max_new_tokens=MAX_NEW_TOKENS),
    "temperature 1, top-p 0.9, top-k 20": SamplingParams(
        temperature=1.0, top_p=0.9, top_k=20, max_new_tokens=MAX_NEW_TOKENS
    ),
}


async def measure_agreement(bench: Bench) -> dict[str, Any]:
    """First turns of all tasks, sampled and greedy.

    `sampled` compares the log-probs of what the server drew with those of transformers for the
    same ids; `greedy` compares the server's turns with those of `TorchEngine` in float32.
    """
    prompts = [await _opening(bench, number) for number in range(len(bench.tasks))]
    engine = SGLangEngine(bench.url, pool=bench.pool, max_context_tokens=CONTEXT)
    stops = bench.policy(engine).sampling.stop_token_ids
    found: dict[str, Any] = {"prompts": len(prompts), "sampled": {}}
    found["prompt_tokens"] = [min(map(len, prompts)), max(map(len, prompts))]
    for name, params in SAMPLINGS.items():
        turns = await _turns(engine, prompts, params, stops)
        sequences = [_scored(*pair) for pair in zip(prompts, turns, strict=True)]
        found["sampled"][name] = {
            "finish": dict(Counter(turn.finish for turn in turns)),
            **compare(bench.models, sequences, temperature=params.temperature),
        }
    found["greedy"] = await compare_greedy(bench, prompts)
    found["limits"] = await _limits(bench, engine, prompts[0], stops)
    return found


async def _opening(bench: Bench, number: int) -> NDArray[np.int32]:
    view = prompt_view("compact")
    task = bench.tasks[number]
    session = tokendelta.Session(bench.profile, tools=view.tools(task.domain), max_tokens=CONTEXT)
    words = await compact_user().reset(task)
    prompt = session.start(
        [
            {"role": "system", "content": view.system(task.domain)},
            {"role": "user", "content": words},
        ]
    )
    assert not isinstance(prompt, tokendelta.Overflow)
    return prompt


async def _turns(
    engine: Engine,
    prompts: Sequence[NDArray[np.int32]],
    params: SamplingParams,
    stops: tuple[int, ...],
) -> list[Completion]:
    params = SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        max_new_tokens=params.max_new_tokens,
        stop_token_ids=stops,
        seed=1,
    )
    work = [
        engine.generate(prompt, params, session_id=f"turn-{number}")
        for number, prompt in enumerate(prompts)
    ]
    return list(await asyncio.gather(*work))


def _scored(prompt: NDArray[np.int32], turn: Completion) -> Scored:
    ids = [*prompt.tolist(), *turn.ids.tolist()]
    return Scored(ids, range(len(prompt), len(ids)), turn.logprobs.tolist())


async def compare_greedy(bench: Bench, prompts: Sequence[NDArray[np.int32]]) -> dict[str, Any]:
    """The likeliest turns after the prompts: the server's and those of `TorchEngine` in float32."""
    engine = SGLangEngine(bench.url, pool=bench.pool, max_context_tokens=CONTEXT)
    stops = bench.policy(engine).sampling.stop_token_ids
    params = SamplingParams(temperature=0.0, max_new_tokens=MAX_NEW_TOKENS)
    theirs = await _turns(engine, prompts, params, stops)
    again = await _turns(engine, prompts, params, stops)
    local = TorchEngine(bench.models["float32"].cpu(), rows=len(prompts), context=CONTEXT)
    try:
        ours = await _turns(local, prompts, params, stops)
    finally:
        await local.close()
        bench.models["float32"].to(bench.models[bench.dtype].device)
    common = [_common(one.ids, other.ids) for one, other in zip(theirs, ours, strict=True)]
    # The first token that differs was chosen after the same ids and is not compared.
    said = [turn.logprobs[:size] for turn, size in zip(theirs, common, strict=True)]
    reference = [turn.logprobs[:size] for turn, size in zip(ours, common, strict=True)]
    return {
        "turns": len(theirs),
        "tokens": sum(len(turn.ids) for turn in theirs),
        "same_ids": sum(
            np.array_equal(one.ids, other.ids) for one, other in zip(theirs, ours, strict=True)
        ),
        "same_ids_asked_twice": sum(
            np.array_equal(one.ids, other.ids) for one, other in zip(theirs, again, strict=True)
        ),
        "until_first_difference": difference(said, reference),
    }


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    size = min(len(one), len(other))
    apart = np.flatnonzero(one[:size] != other[:size])
    return int(apart[0]) if apart.size else size


async def _limits(
    bench: Bench, engine: SGLangEngine, prompt: NDArray[np.int32], stops: tuple[int, ...]
) -> dict[str, Any]:
    """How a turn ends that the token limit cuts, and one that leaves no room."""
    short = SamplingParams(max_new_tokens=3, stop_token_ids=stops)
    cut = await engine.generate(prompt, short, session_id="cut")
    full = SGLangEngine(bench.url, pool=bench.pool, max_context_tokens=len(prompt))
    none = await full.generate(prompt, short, session_id="full")
    return {
        "three_tokens": [cut.finish, len(cut.ids)],
        "no_room": [none.finish, len(none.ids)],
        "second_time_cached_tokens": cut.cached_tokens,
        "first_weight_version": str(cut.meta.get("weight_version")),
    }

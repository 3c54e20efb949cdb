"""The same episodes with ids in and out, and with text that both sides tokenise anew."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from taubench.users import UserConfig, compact_user
from turnwise.engine import Completion, Engine, Finish, SamplingParams
from turnwise.engine.http import HttpPool
from turnwise.engine.sglang import SGLangEngine
from turnwise.episode import Episode
from turnwise.rollout import Rollout, derive_seed

from apps.trainers.tau.episode import run_episode
from apps.trainers.tau.options import TauOptions
from benchmarks.sglang.bench import GROUP, Bench
from benchmarks.sglang.rollout import Request, cache_by_turn

ROUNDS = 3
FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "abort"}


@dataclass
class Metered:
    """Sums over the requests of an engine, and of each session its prompts and cache hits."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    sessions: dict[str, list[Request]] = field(default_factory=dict)
    prompts_of_other_length: int = 0
    turns_of_other_ids: int = 0

    def add(self, session_id: str, prompt: int, cached: int, sampled: int) -> None:
        self.requests += 1
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.sampled_tokens += sampled
        self.sessions.setdefault(session_id, []).append(Request(prompt, cached, sampled))


class IdEngine:
    """`SGLangEngine`, metered."""

    def __init__(self, bench: Bench, meter: Metered) -> None:
        self._inner = SGLangEngine(bench.url, pool=bench.pool)
        self._meter = meter

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        turn = await self._inner.generate(prompt_ids, params, session_id=session_id)
        self._meter.add(session_id, len(prompt_ids), turn.cached_tokens, len(turn.ids))
        return turn

    async def release(self, session_id: str) -> None:
        await self._inner.release(session_id)

    async def close(self) -> None:
        await self._inner.close()


class TextEngine:
    """Text in, text out, as agents on chat templates do it; the ids are guessed from the text.

    The prompt goes out as text, which the server tokenises. The answer comes back as text, which
    is tokenised here. No log-probs are asked for: they could not be laid on guessed ids.
    """

    def __init__(self, bench: Bench, meter: Metered) -> None:
        self._url = f"{bench.url}/generate"
        self._pool: HttpPool = bench.pool
        self._tokenizer = bench.tokenizer
        self._meter = meter

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        text = self._tokenizer.decode(
            prompt_ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        sampling = {
            "temperature": params.temperature,
            "max_new_tokens": params.max_new_tokens,
            "stop_token_ids": list(params.stop_token_ids),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
        }
        answer = await self._pool.post(self._url, {"text": text, "sampling_params": sampling})
        meta = answer["meta_info"]
        ids = self._tokenizer.encode(answer["text"], add_special_tokens=False)
        self._meter.add(
            session_id, meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]
        )
        self._meter.prompts_of_other_length += meta["prompt_tokens"] != len(prompt_ids)
        self._meter.turns_of_other_ids += ids != answer["output_ids"]
        ids = ids[: params.max_new_tokens]
        return Completion(
            np.array(ids, dtype=np.int32),
            np.zeros(len(ids), dtype=np.float32),
            FINISHES[meta["finish_reason"]["type"]],
            cached_tokens=meta["cached_tokens"],
        )

    async def release(self, session_id: str) -> None:
        return None

    async def close(self) -> None:
        return None


async def measure_speed(bench: Bench) -> dict[str, Any]:
    """`ROUNDS` times both ways in turn, sampled and greedy, each into an empty cache."""
    await _play(bench, IdEngine, 1.0)
    await _play(bench, TextEngine, 1.0)
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(ROUNDS):
        for name, temperature in (("sampled", 1.0), ("greedy", 0.0)):
            for kind, make in (("ids", IdEngine), ("text", TextEngine)):
                row = await _play(bench, make, temperature)
                found.setdefault(f"{name}, {kind}", []).append(row)
    return found


async def _play(bench: Bench, make: Any, temperature: float) -> dict[str, Any]:
    meter = Metered()
    engine: Engine = make(bench, meter)
    policy = bench.policy(engine, temperature=temperature)
    options = TauOptions(prompt="compact", user=UserConfig(strategy="offline"))
    flushed = await bench.flush()
    cpu, begun = time.process_time(), time.perf_counter()
    work = [
        run_episode(
            Rollout(
                task=task,
                task_id=task.id,
                rollout_id=f"{number}-{at}",
                group_id=str(number),
                seed=derive_seed(42, "train", number * GROUP + at),
            ),
            policy,
            options,
            make_user=compact_user,
        )
        for number, task in enumerate(bench.tasks)
        for at in range(GROUP)
    ]
    episodes: list[Episode] = list(await asyncio.gather(*work))
    wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    scores = [one.score for one in episodes if one.score is not None]
    return {
        "flushed": flushed,
        "wall_s": wall_s,
        "client_cpu_s": cpu_s,
        "endings": dict(Counter(one.ending.label for one in episodes)),
        "score_mean": float(np.mean(scores)) if scores else None,
        "requests": meter.requests,
        "sampled_tokens": meter.sampled_tokens,
        "prompt_tokens": meter.prompt_tokens,
        "cached_share": meter.cached_tokens / meter.prompt_tokens,
        "sampled_tokens_per_s": meter.sampled_tokens / wall_s,
        "tokens_per_s": (meter.sampled_tokens + meter.prompt_tokens) / wall_s,
        "prompts_of_other_length": meter.prompts_of_other_length,
        "turns_of_other_ids": meter.turns_of_other_ids,
        "cache_by_turn": cache_by_turn(list(meter.sessions.values())),
    }

"""What reading costs beside the engine: turns a second, memory, the cost of a turn by its place.

    python -m benchmarks.memagent.measure --episodes 64 --tokens 200000

The engine answers at once with a memory of `--memory` tokens, so all time is ours: encoding,
prompts, sessions, segments. Times are processor time of the process, all threads, so that other
work on the machine counts little. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokendelta import Profile
from transformers import AutoTokenizer
from turnwise.engine import Completion, SamplingParams
from turnwise.policy import Policy
from turnwise.rollout import Rollout

from apps.trainers.memagent.laptop.world import make_story
from apps.trainers.memagent.method import MemAgentMethod
from apps.trainers.memagent.options import MemAgentOptions
from apps.trainers.memagent.task import Task

CONTEXT = 32_768
WORDS_A_SENTENCE = 5


class AtOnce:
    """Answers at once. Keeps the engine's contract.

    Attributes:
        asked: Processor seconds at which each turn of the first episode was asked for.
    """

    def __init__(self, memory: int, stop: int) -> None:
        ids = 300 + np.arange(memory, dtype=np.int32) % 200
        self._ids = np.append(ids, np.int32(stop)).astype(np.int32)
        self._logprobs = np.zeros(len(self._ids), dtype=np.float32)
        self.asked: list[float] = []

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        if session_id == "0":
            self.asked.append(time.process_time())
        await asyncio.sleep(0)
        return Completion(self._ids, self._logprobs, "stop")

    async def release(self, session_id: str) -> None:
        return None

    async def close(self) -> None:
        return None


async def measure(episodes: int, tokens: int, memory: int, chunk: int) -> dict[str, Any]:
    """Plays the episodes side by side, each with a text of its own."""
    method = MemAgentMethod(MemAgentOptions(max_chunks=None, chunk_tokens=chunk))
    tokenizer: Any = AutoTokenizer.from_pretrained(MemAgentMethod.shipped)
    profile = Profile.from_tokenizer(tokenizer)
    engine = AtOnce(memory, tokenizer.eos_token_id)
    policy = Policy(
        engine=engine,
        profile=profile,
        max_context_tokens=CONTEXT,
        sampling=SamplingParams(max_new_tokens=1_024),
    )
    sentences = tokens // WORDS_A_SENTENCE

    def blocks(seed: int) -> Any:
        # A few sentences over and over: what is measured does not depend on what they say.
        story = make_story(seed, "text", kind="both", order="random", sentences=200)
        for _ in range(sentences // len(story.facts)):
            yield story.text

    def rollout(number: int) -> Rollout[Task]:
        task = Task("Who?", lambda: blocks(number), ("Nobody",), "benchmark")
        return Rollout(task, "t", rollout_id=f"{number}", group_id="g", seed=number)

    before = _peak_mib()
    started = time.process_time()
    played = await asyncio.gather(*(method.run(rollout(n), policy) for n in range(episodes)))
    spent = time.process_time() - started
    turns = sum(int(episode.metrics["turns"]) for episode in played)
    gaps = np.diff(engine.asked) / episodes
    tenth = max(1, len(gaps) // 10)
    return {
        "episodes": episodes,
        "sections": int(played[0].metrics["sections"]),
        "turns": turns,
        "cpu_s": round(spent, 2),
        "turns_per_cpu_s": round(turns / spent, 1),
        "first_tenth_ms": round(1e3 * float(np.median(gaps[:tenth])), 2),
        "last_tenth_ms": round(1e3 * float(np.median(gaps[-tenth:])), 2),
        "peak_mib": round(_peak_mib() - before),
        "row_tokens": sum(len(one.ids) for one in played[0].segments),
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(argv: Sequence[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200_000, help="of each text")
    parser.add_argument("--memory", type=int, default=300, help="tokens of each memory")
    parser.add_argument("--chunk", type=int, default=5_000, help="tokens of a section")
    given = parser.parse_args(argv)
    found = asyncio.run(measure(given.episodes, given.tokens, given.memory, given.chunk))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])

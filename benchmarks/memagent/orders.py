"""What a prefix cache saves for each order of MemAgent's prompt, on a real SGLang server.

    python -m benchmarks.memagent.orders --policy DIR --out orders.json

Groups of rollouts read their texts side by side, as in a step of training, once with the problem
first (problem, memory, section) and once with the section first (section, problem, memory), each
into an empty cache. Memories always have `--memory` tokens (`ignore_eos`), so both orders are asked
for the same and nothing depends on what the policy says. Prefilled are prompt tokens that the
server did not find in its cache. With `--url` a server that runs is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from tokendelta import Profile
from transformers import AutoTokenizer
from turnwise.command import PreflightError
from turnwise.engine import SamplingParams
from turnwise.engine.sglang import SGLangEngine
from turnwise.episode import Episode
from turnwise.policy import Policy
from turnwise.rollout import Rollout

from apps.trainers.memagent.laptop.world import make_story
from apps.trainers.memagent.method import MemAgentMethod
from apps.trainers.memagent.options import MemAgentOptions
from apps.trainers.memagent.prompts import Order
from apps.trainers.memagent.task import Task
from benchmarks.sglang.server import sglang_server

ORDERS: tuple[Order, ...] = ("problem-first", "section-first")
CONTEXT = 8192
STORY = 100
"""Sentences that one story of the generator has; a longer text is several after one another."""


async def play(url: str, policy: Path, order: Order, given: argparse.Namespace) -> dict[str, Any]:
    """All episodes of an order, and what the server said of their prompts.

    Raises:
        PreflightError: an episode was lost or cancelled, so the figures are of no use.
    """
    options = MemAgentOptions(
        order=order,
        chunk_tokens=given.chunk,
        max_memory_tokens=given.memory,
        max_final_tokens=given.memory,
        max_chunks=None,
    )
    method = MemAgentMethod(options)
    tokenizer: Any = AutoTokenizer.from_pretrained(policy)
    engine = SGLangEngine(url, sampling={"ignore_eos": True}, max_context_tokens=CONTEXT)
    reader = Policy(
        engine=engine,
        profile=Profile.from_tokenizer(tokenizer),
        max_context_tokens=CONTEXT,
        sampling=SamplingParams(max_new_tokens=given.memory),
    )
    texts = [
        text_of(number, given.sections * given.chunk, tokenizer) for number in range(given.texts)
    ]
    rollouts = [
        Rollout(
            Task("Who sings with Ada?", partial(iter, (text,)), ("Nobody",), "benchmark"),
            f"{group}",
            rollout_id=f"{group}#{number}",
            group_id=f"{group}",
            seed=group * given.samples + number,
        )
        for group, text in enumerate(texts)
        for number in range(given.samples)
    ]
    await flush(url)
    started = time.perf_counter()
    try:
        played = await asyncio.gather(*(method.run(one, reader) for one in rollouts))
    finally:
        await engine.close()
    wall_s = time.perf_counter() - started
    lost = [str(one.ending) for one in played if one.score is None]
    if lost:
        raise PreflightError(f"{len(lost)} of {len(played)} episodes have no score: {lost[0]}")
    return {"order": order, "wall_s": round(wall_s, 1), **prefilled(played)}


def text_of(seed: int, tokens: int, tokenizer: Any) -> str:
    """At least so many tokens of generated sentences, cut to them by the method's sections."""
    parts: list[str] = []
    while len(tokenizer.encode("".join(parts), add_special_tokens=False)) < tokens:
        number = seed * 1000 + len(parts)
        story = make_story(number, "text", kind="both", order="random", sentences=STORY)
        parts.append(story.text)
    ids = tokenizer.encode("".join(parts), add_special_tokens=False)
    return str(tokenizer.decode(ids[: tokens - 8]))


def prefilled(played: Sequence[Episode]) -> dict[str, Any]:
    """Sums over all turns, and the share found in the cache by turn."""
    prompts, found = Counter[int](), Counter[int]()
    for episode in played:
        for turn, (prompt, cached) in enumerate(episode.info["cached"], 1):
            prompts[turn] += prompt
            found[turn] += cached
    asked, cached = prompts.total(), found.total()
    return {
        "episodes": len(played),
        "turns": sum(int(one.metrics["turns"]) for one in played),
        "prompt_tokens": asked,
        "prefilled_tokens": asked - cached,
        "cached_share": round(cached / asked, 4),
        "cached_share_by_turn": {turn: round(found[turn] / prompts[turn], 3) for turn in prompts},
    }


async def flush(url: str) -> None:
    """Empties the server's cache. Raises PreflightError where it does not."""
    async with aiohttp.ClientSession() as session, session.post(f"{url}/flush_cache") as answer:
        if answer.status != 200:
            raise PreflightError(f"{url}/flush_cache: HTTP {answer.status}")


async def measure(url: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Both orders, after a first episode that the server compiles its kernels in."""
    warm = argparse.Namespace(**{**vars(given), "texts": 1, "samples": 1})
    await play(url, given.policy, ORDERS[0], warm)
    return [await play(url, given.policy, order, given) for order in ORDERS]


def main(argv: Sequence[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", type=Path, required=True, help="folder of a Hugging Face model")
    parser.add_argument("--url", help="of a server of this policy, in place of one of its own")
    parser.add_argument("--texts", type=int, default=8, help="groups")
    parser.add_argument("--samples", type=int, default=8, help="rollouts of a group")
    parser.add_argument("--sections", type=int, default=10, help="of each text")
    parser.add_argument("--chunk", type=int, default=2_000, help="tokens of a section")
    parser.add_argument("--memory", type=int, default=256, help="tokens of a memory")
    parser.add_argument("--share", type=float, default=0.3, help="of the GPU, by others too")
    parser.add_argument("--cache-tokens", type=int, default=400_000, help="of the server's cache")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures")
    given = parser.parse_args(argv)
    log = given.out.with_suffix(".log")
    own = sglang_server(
        given.policy,
        dtype="bfloat16",
        context=CONTEXT,
        log=log,
        running=given.texts * given.samples,
        share=given.share,
        cache_tokens=given.cache_tokens,
    )
    with nullcontext(given.url) if given.url else own as url:
        found = asyncio.run(measure(url, given))
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Conversations that go on together, whose user takes half a second for each message.

    python -m benchmarks.tau2.measure --conversations 256
    python -m benchmarks.tau2.measure --conversations 256 --package

Ours are coroutines of one event loop, with the users awaited as a model's client awaits them: each
answer goes on in a round of its own (`turnwise.rounds`). The package's are its orchestrator in as
many threads, as its own command runs them. Agents answer at once, so that what is measured is the
benchmark's own work. The lag of the event loop is how late a timer of 10 ms comes; what the process
itself worked until then is the part of it that other processes have no share in.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import Any

from taubench.tau2 import Call, Environment
from taubench.tau2.users import play_user
from turnwise.rounds import keep_what_is_loaded, own_round

from benchmarks.tau2.plans import Plan, plans

USER_S = 0.5
TICK_S = 0.01


async def converse(plan: Plan, wait_s: float) -> float | None:
    """One conversation here, as an episode leads it, and its reward."""
    await own_round()
    environment = Environment(plan.task, max_steps=1000, max_errors=1000)
    words = iter(plan.words)

    async def ask(heard: str) -> str:
        await asyncio.sleep(wait_s)
        await own_round()
        return next(words)

    await play_user(environment, ask)
    for number, (name, arguments) in enumerate(plan.calls):
        environment.step(None, [Call(name, arguments)])
        if number < len(plan.words) - 2:
            environment.step("One moment.")
            await play_user(environment, ask)
    environment.step(plan.closing)
    await play_user(environment, ask)
    return environment.evaluate().reward


async def watch(lags: list[float], work: list[float]) -> None:
    """Notes how late a timer comes, and the processor time until it did, until it is cancelled."""
    while True:
        due, cpu = time.perf_counter() + TICK_S, time.process_time()
        await asyncio.sleep(TICK_S)
        lags.append(max(0.0, time.perf_counter() - due))
        work.append(time.process_time() - cpu)


async def ours(chosen: Sequence[Plan]) -> dict[str, Any]:
    for plan in {plan.task.key: plan for plan in chosen}.values():
        await converse(plan, 0.0)
    keep_what_is_loaded()
    lags: list[float] = []
    work: list[float] = []
    watching = asyncio.create_task(watch(lags, work))
    started, cpu = time.perf_counter(), time.process_time()
    rewards = await asyncio.gather(*(converse(plan, USER_S) for plan in chosen))
    took = {"wall_s": time.perf_counter() - started, "cpu_s": time.process_time() - cpu}
    watching.cancel()
    lags = sorted(lags) or [0.0]
    return {
        **took,
        "rewards": sum(reward or 0.0 for reward in rewards),
        "lag_median_ms": 1e3 * lags[len(lags) // 2],
        "lag_most_ms": 1e3 * lags[-1],
        "work_most_ms": 1e3 * max(work, default=0.0),
    }


def theirs(chosen: Sequence[Plan]) -> dict[str, Any]:
    from benchmarks.tau2 import package

    package.create(chosen[0])

    def one(plan: Plan) -> float:
        return package.reward(plan, package.play(plan, USER_S))

    started, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(len(chosen)) as pool:
        rewards = list(pool.map(one, chosen))
    return {
        "wall_s": time.perf_counter() - started,
        "cpu_s": time.process_time() - cpu,
        "rewards": sum(rewards),
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The command; what it prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--conversations", type=int, default=256)
    parser.add_argument("--domain", choices=["retail", "airline", "telecom"], default="retail")
    parser.add_argument("--package", action="store_true", help="the package's orchestrator")
    options = parser.parse_args(argv)
    chosen = list(islice(cycle(plans(options.domain)), options.conversations))
    found = theirs(chosen) if options.package else asyncio.run(ours(chosen))
    longest = max(len(plan.words) for plan in chosen)
    found |= {
        "conversations": len(chosen),
        "cpu_ms_each": 1e3 * found["cpu_s"] / len(chosen),
        "latency_of_the_longest_s": USER_S * longest,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=1))
    return found


if __name__ == "__main__":
    main()

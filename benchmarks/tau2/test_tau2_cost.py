"""The environment against the package's own: create, a whole conversation, its reward, memory.

Each benchmark's first row is ours; the factors in brackets are the ratios of one run. CPU time is
measured, since one conversation of the package's takes so long that others get the core meanwhile:

    pytest benchmarks/tau2 --benchmark-enable --benchmark-group-by=group \\
      --benchmark-timer=time.process_time
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from taubench.tau2 import Environment, reference

from benchmarks.tau2 import package
from benchmarks.tau2.plans import Plan, a_plan, play

DOMAINS = pytest.mark.parametrize("domain", ["retail", "airline", "telecom"])
WHO = pytest.mark.parametrize("who", ["turnwise", "package"])
ROUNDS = 5
"""Of the package's, which take up to a second each."""


def measured(benchmark: BenchmarkFixture, who: str, what: Callable[[], Any]) -> Any:
    if who == "turnwise":
        return benchmark(what)
    return benchmark.pedantic(  # type: ignore[no-untyped-call]
        what, rounds=ROUNDS, iterations=1, warmup_rounds=1
    )


@DOMAINS
@WHO
def test_create(benchmark: BenchmarkFixture, who: str, domain: str) -> None:
    """Also what a reset costs: neither has one, a conversation starts with an environment."""
    plan = a_plan(domain)
    benchmark.group = f"create {domain}"
    make = (lambda: Environment(plan.task)) if who == "turnwise" else lambda: package.create(plan)
    make()
    assert measured(benchmark, who, make)


@DOMAINS
@WHO
def test_reward(benchmark: BenchmarkFixture, who: str, domain: str) -> None:
    plan = a_plan(domain)
    benchmark.group = f"reward {domain}"
    if who == "turnwise":
        environment = play(plan)
        expected = environment.evaluate().reward
        assert measured(benchmark, who, environment.evaluate).reward == expected
        return
    played = package.play(plan)
    assert measured(benchmark, who, lambda: package.reward(plan, played)) == reward_here(plan)


def reward_here(plan: Plan) -> float | None:
    return play(plan).evaluate().reward


@DOMAINS
def test_the_first_reward_of_a_task(benchmark: BenchmarkFixture, domain: str) -> None:
    """With the replay of the reference, which the process then keeps."""
    environment = play(a_plan(domain))
    benchmark.group = f"reward {domain}"
    benchmark.pedantic(  # type: ignore[no-untyped-call]
        environment.evaluate, setup=reference.cache_clear, rounds=100
    )


@DOMAINS
@WHO
def test_conversation(benchmark: BenchmarkFixture, who: str, domain: str) -> None:
    """From the start to the reward, without the time of agent and user."""
    plan = a_plan(domain)
    benchmark.group = f"conversation {domain}"
    if who == "turnwise":
        assert measured(benchmark, who, lambda: play(plan).evaluate())
        return
    measured(benchmark, who, lambda: package.reward(plan, package.play(plan)))


def bytes_each(make: Callable[[], Any], count: int) -> float:
    # What a process builds once is not an environment's.
    make()
    tracemalloc.start()
    kept = [make() for _ in range(count)]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(kept)


@pytest.mark.parametrize(("domain", "factor"), [("retail", 100), ("airline", 100), ("telecom", 1)])
def test_an_environment_keeps_less_memory(
    domain: str,
    factor: int,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Live bytes of an environment after a conversation. Not a time, so it is asserted."""
    plan = a_plan(domain)
    ours = bytes_each(lambda: play(plan), 50)
    # Of the package an environment at its start, since the orchestrator does not give its own away.
    theirs = bytes_each(lambda: package.create(plan), 2)
    record_property("bytes", {"turnwise": ours, "package": theirs})
    with capsys.disabled():
        print(f"\n{domain}: {ours / 1e3:.1f} kB against {theirs / 1e6:.2f} MB per environment")
    assert theirs > factor * ours

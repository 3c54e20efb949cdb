"""A snippet in the sandbox against a bare interpreter that does nothing, in one run.

    pytest benchmarks/sandbox --benchmark-enable --benchmark-columns=median,iqr,rounds
    ./pants test --force --output=all benchmarks/sandbox -- --benchmark-enable

The floor is `python -I -S -c pass`, run and waited for: no import, no walls, no limits. A row's
median minus the floor's is what the sandbox costs; pytest-benchmark prints the ratios in brackets.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from sandbox import Ran, Sandbox, SandboxConfig, SandboxUnavailable, Tier

AT_ONCE = 64
SYMPY = "import sympy; print(sympy.expand('(x + 1)**2'))"


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


def started(runner: asyncio.Runner, tier: Tier, packages: tuple[str, ...]) -> Sandbox:
    async def start() -> Sandbox:
        sandbox = Sandbox(SandboxConfig(isolation=tier, packages=packages))
        await sandbox.start()
        return sandbox

    try:
        sandbox = runner.run(start())
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    if sandbox.missing:
        runner.run(sandbox.close())
        pytest.skip(f"not installed: {sandbox.missing}")
    return sandbox


def bare(code: str, *flags: str) -> None:
    subprocess.run([sys.executable, *flags, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_bare_interpreter(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "pass"
    benchmark(bare, "pass", "-I", "-S")


@pytest.mark.parametrize("packages", [(), ("numpy", "sympy")], ids=["plain", "numpy-sympy"])
@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
def test_snippet(
    benchmark: BenchmarkFixture, runner: asyncio.Runner, tier: Tier, packages: tuple[str, ...]
) -> None:
    benchmark.group = "pass"
    sandbox = started(runner, tier, packages)
    result = benchmark(lambda: runner.run(sandbox.run("pass")))
    assert isinstance(result, Ran) and result.code == 0
    runner.run(sandbox.close())


def test_bare_interpreter_with_sympy(benchmark: BenchmarkFixture) -> None:
    pytest.importorskip("sympy")
    benchmark.group = "sympy"
    benchmark.pedantic(bare, (SYMPY,), rounds=5)


@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
def test_snippet_with_sympy(
    benchmark: BenchmarkFixture, runner: asyncio.Runner, tier: Tier
) -> None:
    benchmark.group = "sympy"
    sandbox = started(runner, tier, ("numpy", "sympy"))
    result = benchmark.pedantic(lambda: runner.run(sandbox.run(SYMPY)), rounds=10)
    assert result.out == "x**2 + 2*x + 1\n"
    runner.run(sandbox.close())


@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
def test_many_at_once(benchmark: BenchmarkFixture, runner: asyncio.Runner, tier: Tier) -> None:
    benchmark.group = f"{AT_ONCE} at once"
    sandbox = started(runner, tier, ())

    async def many() -> list[str]:
        results = (sandbox.run(f"print({n})") for n in range(AT_ONCE))
        return [result.out for result in await asyncio.gather(*results)]

    out = benchmark.pedantic(lambda: runner.run(many()), rounds=5)
    assert out == [f"{n}\n" for n in range(AT_ONCE)]
    runner.run(sandbox.close())


def test_bare_interpreters_one_by_one(benchmark: BenchmarkFixture) -> None:
    benchmark.group = f"{AT_ONCE} at once"

    def many() -> None:
        for n in range(AT_ONCE):
            bare(f"print({n})", "-I", "-S")

    benchmark.pedantic(many, rounds=3)

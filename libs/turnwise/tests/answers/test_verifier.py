"""Formulas compared in a process of their own, which may be lost at any time."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turnwise.answers import Check, MathVerifier
from turnwise.answers import verifier as module
from turnwise.episode import Boundary, BoundaryError

HUGE = "9^{9^{9^9}}"


@asynccontextmanager
async def verifying(**options: float) -> AsyncIterator[MathVerifier]:
    verifier = MathVerifier(**options)  # type: ignore[arg-type]
    try:
        yield verifier
    finally:
        await verifier.close()
        assert not children()


def children() -> list[int]:
    """Processes of ours that run or wait to be collected."""
    listed = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return [int(word) for entry in listed for word in entry.read_text().split()]


def worker_of(verifier: MathVerifier) -> int:
    (one,) = verifier._alive
    return one._process.pid


EQUAL = [
    ("34", "34"),
    ("034", "34"),
    ("+5", "5"),
    ("$5$", "5"),
    ("5.", "5"),
    (r"\(5\)", "5"),
    (r"\frac12", "0.5"),
    ("1/2", r"\frac{1}{2}"),
    (r"\dfrac{2}{4}", "0.5"),
    ("1,234", "1234"),
    ("x=3", "3"),
    (r"50\%", "0.5"),
    (r"3 \text{ cm}", "3"),
    (r"\$5.00", "5"),
    (r"\{1,2\}", r"\{2,1\}"),
    (r"2\sqrt2", r"\sqrt{8}"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"90^\circ", "90"),
    (r"\text{Evelyn}", "Evelyn"),
    ("[1,2)", "[1, 2)"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
]
DIFFERENT = [
    ("35", "34"),
    ("-34", "34"),
    ("0.51", r"\frac12"),
    (r"\sqrt{2}", "1.5"),
    ("x+1", "x+2"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"),
    ("(1,2)", "(2,1)"),
    ("sin(x)", r"\cos(x)"),
]
WORDS = [
    ("seven", "7"),
    ("Anna", "Evelyn"),
    ("", "7"),
    ("}7{", "8"),
    (r"8} or \boxed{9", "8"),
    (r"cut off: \boxed{8", "8"),
    (r"\boxed{8}", "8"),
    ("8 or maybe 9", "8"),
    (r"\text{not } 8", "8"),
    ("\x00", "5.5"),
    ("\u4e94", "5"),
    ("\ud83d", "5.5"),
]


async def test_formulas_are_equal_different_or_no_formulas() -> None:
    found = {}
    async with verifying() as verifier:
        for pairs in (EQUAL, DIFFERENT, WORDS):
            for prediction, truth in pairs:
                found[prediction, truth] = await verifier.check(prediction, truth)
        assert verifier.started == 1
    expected = {
        **dict.fromkeys(EQUAL, Check(True)),
        **dict.fromkeys(DIFFERENT, Check(False)),
        **dict.fromkeys(WORDS, Check(None, "words")),
    }
    assert {pair: check for pair, check in found.items() if check != expected[pair]} == {}
    assert verifier.checks["equal"] == len(EQUAL) and verifier.checks["words"] == len(WORDS)


async def test_equal_texts_and_integers_start_no_process() -> None:
    async with verifying() as verifier:
        assert await verifier.equal("073", "73") is True
        assert await verifier.equal("73", "74") is False
        assert await verifier.equal(r"\frac{1}{2}", r"$\frac{1}{2}$") is True
        assert await verifier.equal("", "7") is None
        assert verifier.started == 0


async def test_a_costly_formula_decides_nothing_and_the_next_one_is_compared() -> None:
    async with verifying() as verifier:
        assert await verifier.check("3/2", "1.5") == Check(True)
        verifier._cpu_s = 0.5
        assert await verifier.check(HUGE, "1.5") == Check(None, "costly")
        assert await verifier.check("(" * 400 + "1" + ")" * 400, "1.5") == Check(None, "costly")
        verifier._cpu_s = 5.0
        assert await verifier.check("3/2", "1.5") == Check(True)
        assert verifier.started == 3


FORGETS_NOTHING = """
import json, sys

def main(memory_mb):
    print(json.dumps({"ready": True}), flush=True)
    for asked, line in enumerate(sys.stdin):
        (formula,) = json.loads(line)["pairs"][0]["prediction"]
        fits = asked == 0 and formula != "huge"
        print(json.dumps({"equal": True} if fits else {"equal": None, "why": "costly"}), flush=True)
"""


async def test_what_a_worker_keeps_of_earlier_formulas_makes_none_costly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "worker.py"
    file.write_text(FORGETS_NOTHING)
    monkeypatch.setattr(module, "_CHILD_FILE", str(file))
    verifier = MathVerifier(workers=1)
    try:
        assert await verifier.check("x", "y") == Check(True)
        assert await verifier.check("x + 1", "y") == Check(True)
        assert await verifier.check("huge", "y") == Check(None, "costly")
    finally:
        await verifier.close()
    assert verifier.started == 3


MARKS = st.sampled_from(
    [
        "\\",
        "{",
        "}",
        "(",
        ")",
        "^",
        "_",
        "$",
        ".",
        "1",
        "x",
        " ",
        "\u221a",
        "\u00bd",
        "\\text{",
        "sqrt(",
    ]
)


@settings(deadline=None, database=None)
@given(st.text(max_size=60) | st.lists(MARKS, max_size=40).map("".join))
def test_no_text_raises_or_blocks_before_it_is_parsed(text: str) -> None:
    found = module._at_a_glance(text, "7x")
    assert isinstance(found, Check) or all(pair.prediction and pair.truth for pair in found)


@pytest.mark.parametrize(
    "unit", ["\u221a(", "A. ", "1\\ ", "^(", "\u00b9", "\\pmod ", "\\text{m}/"]
)
def test_a_formula_is_read_in_time_that_grows_with_its_length(unit: str) -> None:
    """A loop within a loop, or a call within a call, would take seconds or all of the stack."""
    started = time.process_time()
    module._at_a_glance((unit * 2000)[: module.MAX_CHARACTERS - 1], "7x")
    assert time.process_time() - started < 2


async def test_a_formula_too_long_is_not_read() -> None:
    async with verifying() as verifier:
        assert await verifier.check("1" * 10**6, "1") == Check(None, "costly")
        assert await verifier.check("$" * 10**6, "1") == Check(None, "costly")
        assert verifier.started == 0


async def test_a_stalled_worker_is_ended_at_the_deadline() -> None:
    async with verifying() as verifier:
        await verifier.check("1/2", "0.5")
        first = worker_of(verifier)
        os.kill(first, signal.SIGSTOP)
        verifier._deadline_s = 0.2
        assert await verifier.check("1/2", "0.5") == Check(None, "late")
        verifier._deadline_s = 60.0
        assert first not in children()
        assert await verifier.check("1/2", "0.5") == Check(True)
    assert verifier.checks["late"] == 1


async def test_a_killed_worker_decides_nothing() -> None:
    async with verifying(cpu_s=30) as verifier:
        await verifier.check("1/2", "0.5")
        waiting = asyncio.create_task(verifier.check(HUGE, "1.5"))
        while verifier._idle:
            await asyncio.sleep(0.01)
        os.kill(worker_of(verifier), signal.SIGKILL)
        assert await waiting == Check(None, "broken")


async def test_a_worker_that_died_idle_decides_nothing_and_is_replaced() -> None:
    async with verifying() as verifier:
        await verifier.check("1/2", "0.5")
        os.kill(worker_of(verifier), signal.SIGKILL)
        assert await verifier.check("1/2", "0.5") == Check(None, "broken")
        assert await verifier.check("1/2", "0.5") == Check(True)


async def test_the_event_loop_goes_on_while_formulas_are_compared() -> None:
    async with verifying() as verifier:
        await verifier.check("1/2", "0.5")
        verifier._cpu_s = 1.0
        waiting = asyncio.create_task(verifier.check(HUGE, "1.5"))
        gaps, last = [], time.monotonic()
        while not waiting.done():
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()
        assert len(gaps) > 50


async def test_many_comparisons_share_the_workers() -> None:
    async with verifying(workers=2) as verifier:
        pairs = [(f"{n}/7", f"{n + n % 2}/7") for n in range(40)]
        found = await asyncio.gather(*(verifier.equal(*pair) for pair in pairs))
        assert found == [n % 2 == 0 for n in range(40)]
        assert verifier.started <= 2


async def test_workers_are_replaced_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECKS_PER_WORKER", 2)
    async with verifying() as verifier:
        for _ in range(4):
            assert await verifier.equal("1/2", "0.5")
        assert verifier.started == 2


async def test_closing_ends_workers_in_the_middle_of_a_comparison() -> None:
    verifier = MathVerifier(cpu_s=60)
    await verifier.check("1/2", "0.5")
    waiting = asyncio.create_task(verifier.check(HUGE, "1.5"))
    while verifier._idle:
        await asyncio.sleep(0.01)
    await verifier.close()
    assert await waiting == Check(None, "broken")
    assert not children()
    assert await verifier.equal("1/2", "0.5")
    await verifier.close()


def test_one_verifier_serves_several_event_loops_in_turn() -> None:
    verifier = MathVerifier()

    async def once() -> bool | None:
        return await verifier.equal("1/2", "0.5")

    assert asyncio.run(once()) is asyncio.run(once()) is True
    assert verifier.started == 1
    asyncio.run(verifier.close())


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Puts code in the place of math-verify."""

    def put(code: str) -> None:
        (tmp_path / "math_verify.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))

    return put


async def test_a_worker_that_cannot_start_is_a_failure_of_the_judge(
    stand_in: Callable[[str], None],
) -> None:
    stand_in("raise ImportError('not here')")
    async with verifying() as verifier:
        with pytest.raises(BoundaryError, match="does not start: ImportError: not here") as caught:
            await verifier.check("1/2", "0.5")
    assert caught.value.boundary is Boundary.JUDGE


async def test_a_worker_also_finds_what_lies_apart_and_this_process_does_not(
    stand_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside = tmp_path / "code"
    (beside / module.APART).mkdir(parents=True)
    (beside / module.APART / "only_apart.py").write_text("said = 'found apart'")
    monkeypatch.setattr(module, "_BESIDE", str(beside))
    stand_in("from only_apart import said\nraise ImportError(said)")
    async with verifying() as verifier:
        with pytest.raises(BoundaryError, match="does not start: ImportError: found apart"):
            await verifier.check("1/2", "0.5")
    assert importlib.util.find_spec("only_apart") is None


async def test_a_worker_that_dies_at_its_start_is_a_failure_of_the_judge(
    stand_in: Callable[[str], None],
) -> None:
    stand_in("import os; os._exit(7)")
    async with verifying() as verifier:
        with pytest.raises(BoundaryError, match="does not start: exit status 7"):
            await verifier.check("1/2", "0.5")


async def test_memory_is_bounded_and_running_out_of_it_decides_nothing(
    stand_in: Callable[[str], None],
) -> None:
    stand_in(
        "class grader: pass\n"
        "class parser: NormalizationConfig = dict\n"
        "LatexExtractionConfig = dict\n"
        "def parse(text, config, **options): return bytes(bytearray(700 * 2**20)[:1])"
    )
    async with verifying(memory_mb=600) as verifier:
        assert await verifier.check("1/2", "0.5") == Check(None, "costly")
        assert verifier.started == 1 and not verifier._alive


async def test_workers_see_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-4f9c2d")
    async with verifying() as verifier:
        await verifier.check("1/2", "0.5")
        environment = Path(f"/proc/{worker_of(verifier)}/environ").read_bytes()
    assert b"4f9c2d" not in environment


@pytest.mark.parametrize("option", ["workers", "cpu_s", "deadline_s", "memory_mb"])
def test_a_bound_must_be_positive(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be greater than 0, found 0"):
        MathVerifier(**{option: 0})

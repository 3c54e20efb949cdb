"""The generated problems, and who of the two rule-based tools answers them."""

import re
import subprocess
import sys
import time
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.trainers.agentflow.laptop.base_generator import UNKNOWN, product, rough_answer
from apps.trainers.agentflow.laptop.coder import write_code
from apps.trainers.agentflow.laptop.problems import FAMILIES, LEVELS, Problem, make_problems

EXACT = ("arithmetic", "range-sum", "number-theory", "equation")


def head_is_right(problem: Problem) -> bool:
    return rough_answer(problem.text).endswith(f" {problem.answer}.")


def code_results(problems: Iterable[Problem]) -> list[str]:
    """What the programs print, in one interpreter: `error` for one that raises."""
    script = (
        "import contextlib, io, sys\n"
        "for code in sys.stdin.read().split('\\0'):\n"
        "    out = io.StringIO()\n"
        "    try:\n"
        "        with contextlib.redirect_stdout(out):\n"
        "            exec(code, {})\n"
        "        print(out.getvalue().strip())\n"
        "    except Exception:\n"
        "        print('error')\n"
    )
    programs = "\0".join(write_code(problem.text) for problem in problems)
    done = subprocess.run(
        [sys.executable, "-c", script], input=programs, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_no_problem_is_on_two_sides_whatever_the_seeds(one: int, other: int) -> None:
    sides = [
        make_problems("train", per_cell=6, seed=one),
        make_problems("tune", per_cell=6, seed=other),
        make_problems("held-out", per_cell=6, seed=one),
    ]
    made = [problem for problems in sides for problem in problems]
    assert len({problem.id for problem in made}) == len(made)
    assert len({problem.text for problem in made}) == len(made)


def test_the_same_arguments_give_the_same_problems_and_other_seeds_others() -> None:
    first = make_problems("train", per_cell=5, seed=1)
    assert first == make_problems("train", per_cell=5, seed=1)
    assert first != make_problems("train", per_cell=5, seed=2)


def test_every_cell_is_filled_without_repetition() -> None:
    made = make_problems("train", per_cell=10, seed=3)
    cells = [(problem.family, problem.level) for problem in made]
    assert set(cells) == {(family, level) for family in FAMILIES for level in LEVELS}
    assert all(cells.count(cell) == 10 for cell in cells)
    assert len({problem.id for problem in made}) == len(made)
    assert all(re.fullmatch(r"-?\d+", problem.answer) for problem in made)


def test_a_subset_of_families_and_levels_is_what_was_asked_for() -> None:
    made = make_problems("held-out", per_cell=3, seed=0, families=("word",), levels=(2,))
    assert {(problem.family, problem.level) for problem in made} == {("word", 2)}


@pytest.mark.parametrize(
    "wrong", [{"families": ("geometry",)}, {"levels": (0,)}, {"levels": (4,)}, {"per_cell": 0}]
)
def test_what_there_is_not_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="families are arithmetic"):
        make_problems("train", **{"per_cell": 1, "seed": 0, **wrong})  # type: ignore[arg-type]


def test_answers_are_right() -> None:
    """Formulas by another program than the generator's, stories and facts by understanding them."""
    exact = make_problems("train", per_cell=30, seed=4, families=EXACT)
    assert code_results(exact) == [problem.answer for problem in exact]
    words = make_problems("train", per_cell=30, seed=4, families=("word", "fact", "measure"))
    assert all(head_is_right(problem) for problem in words)


def test_the_coder_is_right_on_formulas_and_wrong_on_words() -> None:
    words = make_problems("held-out", per_cell=20, seed=5, families=("word", "fact", "measure"))
    results = code_results(words)
    right = [result == problem.answer for result, problem in zip(results, words, strict=True)]
    assert sum(right) < 0.1 * len(words)
    failed = {
        (p.family, p.level) for p, result in zip(words, results, strict=True) if "e" in result
    }
    assert failed == {("fact", 1), ("measure", 1)}


def test_the_head_is_right_on_small_formulas_and_wrong_on_large_ones() -> None:
    small = make_problems("held-out", per_cell=20, seed=6, families=EXACT, levels=(1,))
    assert all(head_is_right(problem) for problem in small)
    large = make_problems("held-out", per_cell=40, seed=6, families=EXACT, levels=(2, 3))
    assert sum(map(head_is_right, large)) < 0.1 * len(large)


@pytest.mark.parametrize(
    ("a", "b", "value"), [(12, 1000, 12_000), (13, 14, 100), (-3, 4, -12), (4837, 2931, 15_000_000)]
)
def test_head_products_are_exact_or_rounded(a: int, b: int, value: int) -> None:
    assert product(a, b) == value


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert rough_answer(text)
    compile(write_code(text), "<answer>", "exec")


@pytest.mark.parametrize("word", ["a", "1"])
def test_a_word_without_an_end_is_read_in_linear_time(word: str) -> None:
    start = time.process_time()
    assert rough_answer(word * 100_000) == UNKNOWN
    # Some ten times what it takes; each letter was once taken for the beginning of the word.
    assert time.process_time() - start < 10


@pytest.mark.parametrize("text", ["", "Prove it.", "How many sides does a zorb have?"])
def test_the_head_says_when_it_does_not_know(text: str) -> None:
    assert rough_answer(text) == UNKNOWN

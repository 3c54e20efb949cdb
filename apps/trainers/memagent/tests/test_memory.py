"""What is wrong with a memory is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.trainers.memagent.memory import fault, repeats


@given(
    st.lists(st.integers(0, 9), max_size=20),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.integers(0, 11),
)
def test_a_block_over_and_over_at_the_end_is_a_loop(
    before: list[int], block: list[int], cut: int
) -> None:
    assert repeats(before + block * 30 + block[: cut % len(block)])


@given(st.lists(st.integers(0, 10**9), unique=True, max_size=200))
def test_what_never_comes_again_is_no_loop(items: list[int]) -> None:
    assert not repeats(items)


def test_a_few_equal_sentences_are_no_loop() -> None:
    assert not repeats([1, 2, 3, 4, 5, 6, 7, 8] * 3)
    assert not repeats("a short hmmmmm")


@pytest.mark.parametrize(
    ("memory", "cut", "found"),
    [([], False, "empty"), ([7] * 50, True, "repeats"), ([1, 2], True, "cut"), ([1], False, None)],
)
def test_the_worst_fault_is_told(memory: list[int], cut: bool, found: str | None) -> None:
    assert fault(memory, cut=cut) == found

"""What is said is what stands outside of thoughts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.answers import boxed, final_text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"so \boxed{1}", r"so \boxed{1}"),
        (r"<think>\boxed{9}</think>\boxed{1}", r"\boxed{1}"),
        (r"\boxed{9}</think>\boxed{1}", r"\boxed{1}"),
        (r"<think>\boxed{9}", ""),
        (r"<think>I close <think> soon.</think>\boxed{1}", r"\boxed{1}"),
        (r"<think>a<think>b</think>c</think>d", "d"),
        (r"\boxed{1}<think>\boxed{9}", r"\boxed{1}"),
        (r"a<think>b</think>c<think>d</think>e", "ace"),
        ("<THINKING>a</thinking>b", "b"),
        ("<seed:think>a</seed:think>b", "b"),
        ("[THINK]a[/THINK]b", "b"),
        ("\u25c1think\u25b7a\u25c1/think\u25b7b", "b"),
        ("x <thinker> y", "x <thinker> y"),
    ],
)
def test_thoughts_are_no_part_of_the_final_text(text: str, said: str) -> None:
    assert final_text(text) == said


@given(st.text(alphabet="ab{}\\\\boxed1 ", max_size=40), st.text(alphabet="ab \\\\boxed{}1"))
def test_an_unclosed_thought_holds_no_answer_whatever_it_says(thought: str, before: str) -> None:
    assert final_text(f"{before}<think>{thought}") == before
    assert boxed(final_text(f"<think>{thought}")) is None

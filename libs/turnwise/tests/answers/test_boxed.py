"""The last box of a text, whatever the text."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from turnwise.answers import boxed

SETTINGS = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"$\boxed{42}$", "42"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{1}, no: \fbox{2}", "2"),
        (r"\fbox{1}", "1"),
        (r"Answer: \framebox{5}", "5"),
        (r"\framebox[2em][c]{5}", "5"),
        (r"\bbox[border: 1px solid]{5}", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{x = \fbox{3}}", "3"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\frac{a}{\sqrt{b^{2}}}}", r"\frac{a}{\sqrt{b^{2}}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{a \\{b}}", r"a \\{b}"),
        ("\\boxed\n {\n7\n}", "7"),
        (r"\boxed 12 is it", "12"),
        (r"\boxed-3.5.", "-3.5"),
        (r"\boxed 1,234,", "1,234"),
        (r"\\boxed{9}", "9"),
        (r"\boxed{}", ""),
        (r"\boxed{1} then \boxed{ }", ""),
        (r"\boxed{1} then \boxed{2", None),
        (r"\boxed{1} then \boxed{2\}", None),
        (r"\boxed{", None),
        (r"\boxed", None),
        (r"put it into \boxed at the end", None),
        (r"\boxedtext{1}", None),
        ("boxed{1}", None),
        ("the answer is 42", None),
        ("", None),
        (r"<|im_start|>\boxed{4<|im_end|>}", "4<|im_end|>"),
        (r"\text{so }\boxed{\text{yes}}\\", r"\text{yes}"),
        ("\\boxed{\u4e94}", "\u4e94"),
    ],
)
def test_the_last_box_is_the_answer(text: str, answer: str | None) -> None:
    assert boxed(text) == answer


balanced = st.recursive(
    st.text(alphabet="ab1 \n$^_", max_size=5), lambda inner: inner.map(lambda t: f"{{{t}}}")
)


@SETTINGS
@given(st.text(alphabet="\\boxedf{}1 "), st.lists(balanced, min_size=1).map("".join))
def test_a_whole_box_behind_any_text_is_found(before: str, inside: str) -> None:
    assert boxed(f"{before} \\boxed{{{inside}}} done") == inside.strip()


@SETTINGS
@given(st.text() | st.text(alphabet="\\boxed{}fbox1 "))
def test_no_text_raises_and_no_answer_holds_a_whole_box(text: str) -> None:
    answer = boxed(text)
    assert answer is None or boxed(answer) is None


@pytest.mark.parametrize("unit", ["\\boxed{", "\\boxed", "{", "\\", "}", "\\boxed{1} ", "\\boxed "])
def test_long_texts_take_linear_time(unit: str) -> None:
    """Quadratic time would take hours here."""
    boxed(unit * 300_000)

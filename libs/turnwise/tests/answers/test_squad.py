"""Normalised exact match and token F1, by the rules of SQuAD and HotpotQA."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from turnwise.answers import exact_match, f1, normalise

SETTINGS = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel Tower.", "eiffel tower"),
        ("a.b.c.", "abc"),
        ("An\tapple,\nthe pear", "apple pear"),
        ("theatre", "theatre"),
        ("the", ""),
        ("", ""),
        ("1,000.5", "10005"),
        ("\u00c9t\u00e9", "\u00e9t\u00e9"),
    ],
)
def test_case_punctuation_articles_and_space_do_not_count(text: str, normal: str) -> None:
    assert normalise(text) == normal


@SETTINGS
@given(st.text())
def test_normalising_raises_on_no_text(text: str) -> None:
    assert normalise(text) == " ".join(normalise(text).split())


@pytest.mark.parametrize(
    ("prediction", "truths", "score"),
    [
        ("the cat sat", "a cat sat", 1.0),
        ("cat sat down", "cat sat", 0.8),
        ("cat cat", "cat", 2 / 3),
        ("cat", "dog", 0.0),
        ("dog", ["cat", "dog"], 1.0),
        ("big dog", ["cat", "dog"], 2 / 3),
        ("yes", "yes it is", 0.0),
        ("yes it is", "yes", 0.0),
        ("Yes.", "yes", 1.0),
        ("", "cat", 0.0),
        ("the", "", 1.0),
    ],
)
def test_f1_counts_common_tokens(prediction: str, truths: str | list[str], score: float) -> None:
    assert f1(prediction, truths) == pytest.approx(score)


@SETTINGS
@given(st.text(), st.text())
def test_f1_is_one_exactly_where_the_tokens_are_the_same(left: str, right: str) -> None:
    same = sorted(normalise(left).split()) == sorted(normalise(right).split())
    assert 0.0 <= f1(left, right) == f1(right, left) <= 1.0
    assert (f1(left, right) == 1.0) == same
    assert exact_match(left, right) <= same


def test_any_truth_may_match_and_none_at_all_is_a_mistake() -> None:
    assert exact_match("The Cat", ["dog", "cat"])
    assert not exact_match("cow", ["dog", "cat"])
    with pytest.raises(ValueError, match="no truth"):
        exact_match("cat", [])

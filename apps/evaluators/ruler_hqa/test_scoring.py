"""Scores that an empty or trivial prediction can't win."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.answers import normalise

from apps.evaluators.ruler_hqa.scoring import prediction, score, string_match

NAMES = ["The Hague", "Anna of Brunswick", "1984", "Lee", "Theodore"]


@pytest.mark.parametrize("said", ["", " ", "the", "...", "a an the"])
def test_a_prediction_that_says_nothing_is_wrong_in_all_four(said: str) -> None:
    for name in NAMES:
        found = score(said, [name])
        assert (found.gold_in, found.em, found.f1, found.sub_em) == (0, 0, 0, 0)


def test_a_constant_letter_wins_by_the_two_way_rule_alone() -> None:
    found = [score("e", [name]) for name in NAMES]
    assert sum(one.sub_em for one in found) == 3
    assert sum(one.gold_in + one.em for one in found) == 0


def test_words_count_whole() -> None:
    assert score("Leeds", ["Lee"]).gold_in == 0 and score("Leeds", ["Lee"]).sub_em == 1
    assert score("He met Lee, in 1984.", ["Lee"]).gold_in == 1


def test_every_gold_answer_counts_and_the_best_one_stands() -> None:
    found = score("New York City", ["NYC", "new york city"])
    assert (found.em, found.f1, found.gold_in) == (1, 1, 1)


@pytest.mark.parametrize(("said", "gold"), [("yes", "no"), ("no way", "no"), ("yes", "noanswer")])
def test_yes_and_no_match_nothing_but_themselves(said: str, gold: str) -> None:
    assert score(said, [gold]).f1 == 0


def test_a_list_of_everything_is_flagged() -> None:
    said = " ".join(f"word{n}" for n in range(20)) + " Lee"
    assert score(said, ["Lee"]).long and not score("It is Lee", ["Lee"]).long


@given(st.text(), st.lists(st.text("abc ", min_size=1), min_size=1, max_size=3))
def test_equal_is_stronger_than_held_which_is_stronger_than_the_two_way_rule(
    said: str, golds: list[str]
) -> None:
    if not all(map(normalise, golds)):
        with pytest.raises(ValueError, match="says nothing"):
            score(said, golds)
        return
    found = score(said, golds)
    assert found.em <= found.gold_in <= found.sub_em
    assert 0 <= found.f1 <= 1 and (found.f1 == 1 or not found.em)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (r"<think>\boxed{no}</think>So \boxed{Ann}", "Ann"),
        ("Ann", "Ann"),
        ("<think>Ann", ""),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_box_or_all_that_was_said_is_the_prediction(output: str, said: str) -> None:
    assert prediction(output) == said


@pytest.mark.parametrize(
    ("said", "share"), [("17 and 18", 2 / 3), ("", 0.0), ("17\x0718,19", 1.0), ("170 18 19", 1.0)]
)
def test_rulers_score_is_the_share_of_references_in_the_text(said: str, share: float) -> None:
    references: Any = ["17", "18", "19"]
    assert string_match(said, references) == pytest.approx(share)

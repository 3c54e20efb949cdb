"""What a row's label holds, and which labels are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from turnwise.answers.frames import asked_form, without_frame
from turnwise.answers.labels import SameAnswers, read_answer, same_text
from turnwise.config import ConfigError


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        (" 204 ", "204"),
        (204, "204"),
        (204.0, "204"),
        (0.5, "0.5"),
        ([204], "204"),
        ("First <<3*4=12>>12.\nThen that.\n#### 1,033", "1,033"),
        ("First <<3*4=12>>12.\n#### 10\n", "10"),
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ({"ground_truth": '["033"]', "style": "rule"}, "033"),
        ("[1, 2]", "[1, 2]"),
        ("none", "none"),
        (10**60, str(10**60)),
    ],
)
def test_the_answer_is_found_where_data_sets_write_it(label: Any, answer: str) -> None:
    assert read_answer(label, "a.jsonl:3") == answer


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (None, "label: expected a text or a number as the one right answer, found None"),
        (True, "label: expected a text or a number"),
        ({"style": "rule"}, "--label-key names another column"),
        ({"ground_truth": None}, "label.ground_truth: expected a text"),
        (["1", "2"], "label: expected a text or a number"),
        (json.dumps(["1", "2"]), "label: expected a text or a number"),
        ("", "label: is empty"),
        ("First this.\n####", "label: is empty"),
        (float("nan"), "label: is nan, which no answer equals"),
        (float("inf"), "label: is inf, which no answer equals"),
        ("NaN", "label: is 'NaN', a missing value"),
        ("\frac12", "label: holds the control character"),
        ("\ud83d", "half of a character"),
        ("word " * 1000, "has 4,999 characters"),
    ],
)
def test_a_label_that_nothing_equals_is_named(label: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.jsonl:3: ") as caught:
        read_answer(label, "a.jsonl:3")
    assert words in str(caught.value)


def test_labels_are_the_same_where_the_grader_says_so() -> None:
    assert same_text("033") == same_text("$33.$") == same_text("33.0") == "33"
    assert same_text("-0") == same_text("0") != same_text("-1")
    with SameAnswers() as same:
        assert same("033", "33") and same("0.5", r"\frac{1}{2}") and same(r"60^\circ", "60°")
        assert not same("33", "34") and not same("0.333", r"\frac{1}{3}")


def test_the_frame_of_dapo_goes_and_is_what_asks_for_a_line() -> None:
    framed = (
        "Solve the following math problem step by step. The last line of your response should be"
        " of the form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
        '\n\nQ?\n\nRemember to put your answer on its own line after "Answer:".'
    )
    assert asked_form(framed) == "a last line `Answer: ...`"
    assert without_frame(framed) == "Q?"
    assert asked_form("Q?") is None and without_frame(" Q? ") == "Q?"

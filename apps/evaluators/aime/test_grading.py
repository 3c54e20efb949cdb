"""The grader, line by line of its table."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.answers import Check
from turnwise.answers.verifier import Why
from turnwise.evaluation.benchmark import Grade

from apps.evaluators.aime.grading import Grader, normal_form


def worth(score: float, prediction: str | None, vote: str | None, by: str) -> Grade:
    return Grade(score=score, vote=vote, by=by, info={"prediction": prediction})


@pytest.fixture
async def grader() -> AsyncIterator[Grader]:
    found = Grader()
    yield found
    await found.close()


@pytest.mark.parametrize(
    ("output", "label", "grade"),
    [
        ("", "33", worth(0, None, None, "empty")),
        (" \n", "33", worth(0, None, None, "empty")),
        ("\\boxed{}", "33", worth(0, "", None, "empty")),
        ("It is 33.", "33", worth(0, None, None, "no answer")),
        ("so \\boxed{33", "33", worth(0, None, None, "no answer")),
        ("$33$", "33", worth(1, None, "33", "line")),
        ("\\boxed{33}", "33", worth(1, "33", "33", "box")),
        ("\\boxed{033}", "33", worth(1, "033", "33", "box")),
        ("\\boxed{33}", "033", worth(1, "33", "33", "box")),
        ("\\boxed{33}", "\\boxed{33}", worth(1, "33", "33", "box")),
        ("first \\boxed{33}, no, \\boxed{34}", "33", worth(0, "34", "34", "box")),
        ("\\boxed{33}<|im_end|>", "33", worth(1, "33", "33", "box")),
        # Without its slash 1/2 would read as 12.
        ("\\boxed{1/2}", "12", worth(0, "1/2", "1/2", "box")),
        ("\\boxed{\\frac{1}{2}}", "0.5", worth(1, "\\frac{1}{2}", "0.5", "box")),
        ("\\boxed{the Moon}", "moon", worth(1, "the Moon", "moon", "words")),
        ("\\boxed{the sun}", "moon", worth(0, "the sun", "thesun", "box")),
    ],
)
async def test_an_output_is_worth_what_its_last_box_says(
    grader: Grader, output: str, label: str, grade: Grade
) -> None:
    assert await grader.grade("?", output, label) == grade


@pytest.mark.parametrize("why", ["late", "broken"])
async def test_a_verifier_that_fails_loses_the_attempt_and_never_scores_it(
    grader: Grader, monkeypatch: pytest.MonkeyPatch, why: Why
) -> None:
    answer_with(grader, monkeypatch, Check(None, why))
    grade = await grader.grade("How many?", "\\boxed{x}", "33")
    assert (grade.score, grade.vote, grade.by) == (None, None, "undecided")
    assert why in grade.error


async def test_an_answer_that_takes_the_verifier_too_long_is_wrong_whatever_its_letters(
    grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(grader, monkeypatch, Check(None, "costly"))
    grade = await grader.grade("?", "\\boxed{9^{9^{9^9}}}", "9999")
    assert (grade.score, grade.by) == (0, "box")


def answer_with(grader: Grader, monkeypatch: pytest.MonkeyPatch, check: Check) -> None:
    async def answer(prediction: str, truth: str) -> Check:
        return check

    monkeypatch.setattr(grader._judge.verifier, "check", answer)


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("$ 033. $", "33"),
        ("+7", "7"),
        ("-007", "-7"),
        ("1\\,000", "1000"),
        ("\\dfrac{1}{2}", "\\frac{1}{2}"),
        ("x = 3", "x=3"),
        ("", ""),
    ],
)
def test_equal_answers_have_one_normal_form(answer: str, form: str) -> None:
    assert normal_form(answer) == form


@given(st.text(alphabet="0123456789+-.,$ \\\\dfrac{}~x"), st.integers(0, 999))
def test_a_normal_form_stays_and_a_whole_number_is_itself(text: str, number: int) -> None:
    once = normal_form(text)
    assert normal_form(once) == once
    assert normal_form(f" $0{number}$. ") == str(number)

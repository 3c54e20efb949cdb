"""The grader, line by line of its table."""

from collections.abc import AsyncIterator

import pytest
from turnwise.answers import Check
from turnwise.episode import Boundary, BoundaryError, Ending

from apps.evaluators.aime.grading import Grade, Grader, graded_row, normal_form
from apps.evaluators.aime.problems import Problem

PROBLEM = Problem("aime", 1, "How many?", "33")


@pytest.fixture
async def grader() -> AsyncIterator[Grader]:
    found = Grader()
    yield found
    await found.close()


@pytest.mark.parametrize(
    ("output", "label", "grade"),
    [
        ("", "33", Grade(0, None, None, "empty")),
        (" \n", "33", Grade(0, None, None, "empty")),
        ("It is 33.", "33", Grade(0, None, None, "no answer")),
        ("so \\boxed{33", "33", Grade(0, None, None, "no answer")),
        ("\\boxed{33}", "33", Grade(1, "33", "33", "formula")),
        ("\\boxed{033}", "33", Grade(1, "033", "33", "formula")),
        ("\\boxed{33}", "033", Grade(1, "33", "33", "formula")),
        ("\\boxed{33}", "\\boxed{33}", Grade(1, "33", "33", "formula")),
        ("first \\boxed{33}, no, \\boxed{34}", "33", Grade(0, "34", "34", "formula")),
        ("\\boxed{33}<|im_end|>", "33", Grade(1, "33", "33", "formula")),
        ("\\boxed{}", "33", Grade(0, "", "", "words")),
        # Without its slash 1/2 would read as 12.
        ("\\boxed{1/2}", "12", Grade(0, "1/2", "1/2", "formula")),
        ("\\boxed{\\frac{1}{2}}", "0.5", Grade(1, "\\frac{1}{2}", "0.5", "formula")),
        ("\\boxed{The Moon}", "moon", Grade(1, "The Moon", "moon", "words")),
        ("\\boxed{the sun}", "moon", Grade(0, "the sun", "thesun", "words")),
    ],
)
async def test_an_output_is_worth_what_its_last_box_says(
    grader: Grader, output: str, label: str, grade: Grade
) -> None:
    assert await grader.grade(output, label) == grade


async def test_a_verifier_that_fails_loses_the_attempt_and_never_scores_it(
    grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(prediction: str, truth: str) -> Check:
        return Check(None, "late")

    monkeypatch.setattr(grader._verifier, "check", late)
    row = await graded_row(grader, PROBLEM, 0, ending=Ending.finished(), output="\\boxed{x}")
    assert (row.score, row.ending.label) == (None, "lost:judge")

    async def gone(prediction: str, truth: str) -> Check:
        raise BoundaryError(Boundary.JUDGE, "no process")

    monkeypatch.setattr(grader._verifier, "check", gone)
    row = await graded_row(grader, PROBLEM, 0, ending=Ending.finished(), output="\\boxed{x}")
    assert (row.score, row.error, row.by) == (None, "no process", "undecided")


async def test_an_answer_that_takes_the_verifier_too_long_is_wrong(
    grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def costly(prediction: str, truth: str) -> Check:
        return Check(None, "costly")

    monkeypatch.setattr(grader._verifier, "check", costly)
    assert await grader.grade("\\boxed{9^{9^{9^9}}}", "3") == Grade(
        0, "9^{9^{9^9}}", "9^{9^{9^9}}", "costly"
    )


@pytest.mark.parametrize(
    "ending", [Ending.lost(BoundaryError(Boundary.ENGINE, "gone")), Ending.cancelled()]
)
async def test_what_was_lost_is_not_graded_whatever_it_wrote(
    grader: Grader, ending: Ending
) -> None:
    row = await graded_row(grader, PROBLEM, 0, ending=ending, output="\\boxed{33}")
    assert (row.score, row.vote, row.by) == (None, None, "not graded")


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

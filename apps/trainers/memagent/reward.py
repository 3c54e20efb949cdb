"""Whether an answering turn is right."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.answers import boxed, exact_match, final_text, normalise

from apps.trainers.memagent.options import AnswerForm


def read_answer(text: str, form: AnswerForm) -> str:
    """The answer that a turn gives, thoughts left out; "" where it gives none."""
    said = final_text(text).strip()
    return (boxed(said) or "") if form == "boxed" else said


def is_right(answer: str, truths: Sequence[str]) -> bool:
    """Whether an answer is one of the truths after normalisation (`turnwise.answers.squad`)."""
    return bool(normalise(answer)) and exact_match(answer, truths)

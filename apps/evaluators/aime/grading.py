"""One grader for every method, saved output and upstream file: rules alone, no model is asked.

| the output                                      | score               | by          |
|-------------------------------------------------|---------------------|-------------|
| is empty                                        | 0                   | `empty`     |
| has no boxed answer, or its last one is cut off | 0                   | `no answer` |
| its last boxed answer is a formula              | 1 or 0              | `formula`   |
| it or the label is words: equal, normalised     | 1 or 0              | `words`     |
| it takes math-verify too long                   | 0                   | `costly`    |
| math-verify fails or the machine stalls         | none: lost(judge)   | `undecided` |

What came before the final text, such as a method's memory, is never graded in its place. What an
answer costs depends on the answer alone, so a costly one is the policy's doing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from turnwise.answers import MathVerifier, boxed, exact_match
from turnwise.episode import Boundary, BoundaryError, Ending

from apps.evaluators.aime.attempts import AttemptRow
from apps.evaluators.aime.problems import Problem

By = Literal["empty", "no answer", "formula", "words", "costly", "undecided"]
NOT_GRADED = "not graded"
_SPACE = re.compile(r"\\[,;:! ]|[\s$~]+")
_INTEGER = re.compile(r"[+-]?\d{1,50}")


@dataclass(frozen=True, slots=True)
class Grade:
    """What an output is worth.

    Attributes:
        score: 1 or 0; None where the rules can't tell.
        prediction: The answer as it was found; None without one.
        vote: Its normal form; that of the label where the answer is right, however it is written.
        by: The line of the module's table.
        why: What was found where the rules can't tell.
    """

    score: float | None
    prediction: str | None
    vote: str | None
    by: By
    why: str = ""


class Grader:
    """Grades outputs; owns the verifier's worker processes."""

    def __init__(self) -> None:
        self._verifier = MathVerifier()

    async def grade(self, output: str, label: str) -> Grade:
        """Never raises on what a model wrote."""
        if not output.strip():
            return Grade(0.0, None, None, "empty")
        found = boxed(output)
        if found is None:
            return Grade(0.0, None, None, "no answer")
        # A label may come boxed, as answers do.
        truth = boxed(label) or label
        try:
            check = await self._verifier.check(found, truth)
        except BoundaryError as error:
            return Grade(None, found, None, "undecided", str(error))
        by: By = "formula"
        right = check.equal
        if check.why == "words":
            by, right = "words", exact_match(found, truth)
        elif check.why == "costly":
            by, right = "costly", False
        if right is None:
            return Grade(None, found, None, "undecided", f"math-verify: {check.why}")
        return Grade(float(right), found, normal_form(truth if right else found), by)

    async def close(self) -> None:
        await self._verifier.close()


async def graded_row(
    grader: Grader,
    problem: Problem,
    attempt: int,
    *,
    ending: Ending,
    output: str,
    metrics: Mapping[str, float] | None = None,
    wall_s: float = 0.0,
) -> AttemptRow:
    """The row of an attempt; one that was lost or cancelled is not graded."""
    grade = None
    if ending.by_policy:
        grade = await grader.grade(output, problem.label)
        if grade.score is None:
            ending = Ending.lost(BoundaryError(Boundary.JUDGE, grade.why))
    return AttemptRow(
        task_id=problem.id,
        trial=attempt,
        label=problem.label,
        output=output,
        prediction=grade.prediction if grade else None,
        vote=grade.vote if grade else None,
        by=grade.by if grade else NOT_GRADED,
        score=grade.score if grade else None,
        kind=ending.kind,
        limit=ending.limit,
        boundary=ending.boundary,
        error=ending.error,
        wall_s=round(wall_s, 4),
        metrics=dict(metrics or {}),
    )


def normal_form(answer: str) -> str:
    """One text for an answer that is written in several ways: `$ 033. $` is `33`.

    Space, math delimiters and a full stop go; a whole number loses its leading zeros and plus.
    """
    bare = _SPACE.sub("", answer).rstrip(".").replace("\\dfrac", "\\frac")
    return str(int(bare)) if _INTEGER.fullmatch(bare) else bare

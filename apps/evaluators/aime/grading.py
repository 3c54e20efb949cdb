"""One grader for every method, saved output and upstream file: rules alone, no model is asked.

| the output                                        | score               | by          |
|---------------------------------------------------|---------------------|-------------|
| is empty but for thoughts, or its last box is     | 0                   | `empty`     |
| its last box decides by `turnwise.judge`'s rule   | 1 or 0              | `box`       |
| has no box, but is one short line that is right   | 1                   | `line`      |
| has no box otherwise, or its last one is cut off  | 0                   | `no answer` |
| the label is words that the box says, normalised  | 1                   | `words`     |
| the rule's processes fail or the machine stalls   | none: lost(judge)   | `undecided` |

What came before the final text, such as a method's memory, is never graded in its place. A formula
that takes the rule too long is wrong: what it costs depends on the answer alone.
"""

from __future__ import annotations

import re
from typing import Literal

from turnwise.answers import boxed, exact_match
from turnwise.answers.notation import plain
from turnwise.evaluation.benchmark import Grade
from turnwise.judge import Judge

By = Literal["empty", "box", "line", "no answer", "words", "undecided"]
_SPACE = re.compile(r"\\[,;:! ]|[\s$~]+")
_INTEGER = re.compile(r"[+-]?\d{1,50}")
_WORDS = re.compile(r"[^\W\d_]+(?:[ '-]+[^\W\d_]+)*")


class Grader:
    """Grades outputs; owns the processes that compare formulas."""

    def __init__(self) -> None:
        self._judge = Judge()

    async def check(self) -> None:
        """Raises BoundaryError if formulas can't be compared here."""
        await self._judge.check()

    async def grade(self, question: str, output: str, label: str) -> Grade:
        """What an output is worth; its vote is that of the label where the answer is right, however
        it is written. Never raises on what a model wrote."""
        # A label may come boxed, as answers do.
        truth = boxed(label) or label
        verdict = await self._judge.grade(question, output, truth)
        found = verdict.prediction
        by: By = "empty" if verdict.by == "empty" else "box"
        right = verdict.correct
        if right is None:
            return Grade(
                score=None, by="undecided", info={"prediction": found}, error=verdict.error
            )
        if found is None and by != "empty":
            by = "line" if right else "no answer"
        if found and verdict.rule is None and _WORDS.fullmatch(truth) and exact_match(found, truth):
            by, right = "words", True
        form = normal_form(truth) if right else normal_form(found) if found else None
        return Grade(score=float(right), vote=form, by=by, info={"prediction": found})

    async def close(self) -> None:
        await self._judge.close()


def normal_form(answer: str) -> str:
    """One text for an answer that is written in several ways: `$ 033. $` is `33`.

    Space, math delimiters, stop tokens and a full stop go; a whole number loses its leading zeros
    and plus.
    """
    bare = _SPACE.sub("", plain(answer)).rstrip(".").replace("\\dfrac", "\\frac")
    return str(int(bare)) if _INTEGER.fullmatch(bare) else bare

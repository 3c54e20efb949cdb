"""What a predicted answer is worth against all gold answers.

| score              | is 1 where                                                               |
|--------------------|--------------------------------------------------------------------------|
| gold in prediction | a gold answer's words stand in the prediction, in a row                  |
| EM                 | prediction and gold are equal                                            |
| F1                 | (a share) token F1; yes, no and noanswer match nothing but themselves    |
| sub_EM             | one text holds the other, letter by letter, as MemAgent's script has it  |

All after SQuAD's normalisation (`turnwise.answers.squad`); the best gold answer counts. A
prediction that is empty after it is wrong in all four: where the published scripts counted it,
sub_EM took it for right. sub_EM also takes "e" for right wherever the gold answer has that letter,
so that it says something beside the others alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.answers import boxed, exact_match, f1, final_text, normalise

LONG = 10
"""A prediction with more words than that many times the gold answer's is flagged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """See the module; all in [0, 1].

    Attributes:
        long: Whether the prediction is much longer than the gold answer that it holds.
    """

    gold_in: float
    em: float
    f1: float
    sub_em: float
    long: bool = False


def prediction(output: str) -> str:
    """The answer of an output: its last box, or all that it says after its thoughts."""
    said = final_text(output).strip()
    box = boxed(said)
    return said if box is None else box


def score(predicted: str, golds: Sequence[str]) -> Scores:
    """The four scores of a prediction.

    Raises:
        ValueError: there is no gold answer, or one is empty after normalisation.
    """
    truths = [normalise(gold) for gold in golds]
    if not truths or not all(truths):
        raise ValueError(f"a gold answer is missing or says nothing: {list(golds)}")
    said = normalise(predicted)
    if not said:
        return Scores(gold_in=0.0, em=0.0, f1=0.0, sub_em=0.0)
    held = [truth for truth in truths if f" {truth} " in f" {said} "]
    return Scores(
        gold_in=float(bool(held)),
        em=float(exact_match(predicted, golds)),
        f1=f1(predicted, golds),
        sub_em=float(any(truth in said or said in truth for truth in truths)),
        long=bool(held) and len(said.split()) > LONG * max(len(one.split()) for one in held),
    )


def string_match(predicted: str, references: Sequence[str]) -> float:
    """RULER's score of its own tasks: the share of references that the text holds, in lower case.

    Nothing else is normalised; control characters become line breaks first (Hsieh et al. 2024).
    """
    said = "".join("\n" if character < " " else character for character in predicted).strip()
    found = [reference.lower() in said.lower() for reference in references]
    return sum(found) / len(found)

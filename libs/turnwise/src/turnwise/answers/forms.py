"""What two answers are compared as: letters of a choice, times of day, residues, measures, sets.

| truth                      | prediction              | compared are                             |
|----------------------------|-------------------------|------------------------------------------|
| `C`                        | `\\textbf{(C)}\\ 12`    | the letters                              |
| `\\textbf{(C)}\\ 12`       | `12`                    | `12` and `12`                            |
| `3:30`                     | `03:30`, `3:30 pm`      | times of day; a missing am or pm fits    |
| `25`                       | `25 \\pmod{1000}`       | `25` and `25`                            |
| `4 \\pmod 5`               | `-1 \\pmod 5`           | residues; another modulus is wrong       |
| `5 \\text{ m}`             | `5 \\text{ cm}`         | measures: `5` and `5/100`                |
| `5 \\text{ m}`             | `5`                     | numbers, where one side has no unit      |
| `60^\\circ`                | `60`, `\\frac{\\pi}{3}` | degrees as a number, or as an angle      |
| `m \\in [2, \\infty)`      | `m \\ge 2`              | sets                                     |
| `x < 1 \\text{ or } x > 2` | `\\{x \\mid |..| > ..\\}` | unions                                 |

What is none of these is one pair of formulas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnwise.answers import units
from turnwise.answers.notation import TEXT, to_latex

_LETTER = (
    rf"(?:{TEXT}\s*\{{\s*(?:(?:[Oo]ption|[Cc]hoice)\s*)?\(?([A-J])\)?[.:]?\s*\}}"
    r"|\*\*\(?([A-J])\)?[.:]?\*\*|\(([A-J])\)|([A-J])[.):])"
)
_CHOICE = re.compile(rf"{_LETTER}[.:)]?\s*(.*)", re.DOTALL)
_DRESSED = re.compile(rf"{TEXT}\s*\{{\s*((?:\([A-J]\)|[A-J][.:)])[^{{}}]+?)\s*\}}")
_ALONE = re.compile(r"[A-J]")
_TIME = re.compile(
    rf"(?:{TEXT}\s*\{{)?\s*(\d{{1,2}}):([0-5]\d)(?::([0-5]\d))?\s*\}}?\s*(?:{TEXT}\s*\{{)?\s*"
    r"(?:([ap])\.?\s*m\.?)?\s*\}?",
    re.IGNORECASE,
)
_MODULUS = re.compile(
    r"(.*?)\s*(?:\\pmod|\(?\s*(?:\\bmod|\\mod|\\text\s*\{\s*mod\s*\}|\bmod\b))"
    r"\s*\{?\s*([^{}()]+?)\s*\}?\s*\)?",
    re.DOTALL,
)
_MEMBER = re.compile(
    r"([A-Za-z](?:_\w+|_\{\w+\})?)\s*\\in(?![A-Za-z])\s*(?=[\[({\\])(.+)", re.DOTALL
)
_BUILDER = re.compile(
    r"\\\{\s*([A-Za-z])\s*(?:\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?|R)\s*)?"
    r"(?:\\mid|\\vert|\||:)\s*(.+?)\s*\\\}",
    re.DOTALL,
)
_OR = re.compile(rf"\s*(?:{TEXT}\s*\{{\s*or\s*\}}|\bor\b|\\lor\b|\\vee\b|\\cup\b)\s*")
_LISTED = re.compile(r"\\\{[^{}|:]*,[^{}|:]*\\\}")
_ORDERED = re.compile(r"[\[(][^()\[\]]*,[^()\[\]]*[\])]")
_RELATION = re.compile(r"[<>]|\\(?:leq?|geq?|neq?|lt|gt)(?:slant)?(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Pair:
    """Formulas to compare; several of a side are parts of a union."""

    prediction: tuple[str, ...]
    truth: tuple[str, ...]


def pairs(prediction: str, truth: str) -> bool | tuple[Pair, ...]:
    """Whether they are equal; or the pairs of formulas of which one has to be.

    Args:
        prediction, truth: As `notation.plain` returns them.
    """
    asked, said = _choice(truth), _choice(prediction)
    if asked and said:
        return asked[0] == said[0]
    if asked and asked[1]:
        truth = asked[1]
    if said and said[1]:
        prediction = said[1]
    if any(
        _LISTED.fullmatch(one) and _ORDERED.fullmatch(other)
        for one, other in ((prediction, truth), (truth, prediction))
    ):
        return False
    decided: bool | tuple[Pair, ...] | None = _times(prediction, truth)
    if decided is None:
        decided = _residues(prediction, truth)
    return _measures(prediction, truth) if decided is None else decided


def _choice(text: str) -> tuple[str, str] | None:
    """The letter, and what stands behind it."""
    if _ALONE.fullmatch(text):
        return text, ""
    if dressed := _DRESSED.fullmatch(text):
        text = dressed[1]
    found = _CHOICE.fullmatch(text)
    return None if found is None else (next(filter(None, found.groups()[:4])), found[5].strip())


def _times(prediction: str, truth: str) -> bool | None:
    asked, said = _time(truth), _time(prediction)
    if asked is None or said is None:
        return None
    if asked[1] and said[1]:
        return asked == said
    if asked[1] or said[1]:
        half = 12 * 3600
        return asked[0] == said[0] or (
            asked[0] % half == said[0] % half and min(asked[0], said[0]) < half
        )
    return asked[0] == said[0]


def _time(text: str) -> tuple[int, bool] | None:
    """Seconds since midnight, and whether am or pm is said or plain from the hour."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
    if found[4]:
        hour = hour % 12 + (12 if found[4].lower() == "p" else 0)
    return hour * 3600 + minute * 60 + second, bool(found[4])


def _residues(prediction: str, truth: str) -> bool | tuple[Pair, ...] | None:
    asked, said = _MODULUS.fullmatch(truth), _MODULUS.fullmatch(prediction)
    if asked is None and said is None:
        return None
    if asked and said:
        if to_latex(asked[2]) != to_latex(said[2]):
            return False
        left, right = _residue(asked[1]), _residue(said[1])
        if all(re.fullmatch(r"-?\d{1,50}", part) for part in (left, right, asked[2])):
            modulus = int(asked[2])
            return (
                int(left) == int(right) if modulus == 0 else (int(left) - int(right)) % modulus == 0
            )
        return _measures(right, left)
    if asked:
        return _measures(prediction, _residue(asked[1]))
    assert said is not None
    return _measures(_residue(said[1]), truth)


def _residue(text: str) -> str:
    return text.rpartition("\\equiv")[2].strip()


def _measures(prediction: str, truth: str) -> bool | tuple[Pair, ...]:
    asked, said = units.split(truth), units.split(prediction)
    if asked and not said:
        said = units.split(prediction, loose=True)
    elif said and not asked:
        asked = units.split(truth, loose=True)
    number = asked[0] if asked else units.without_noun(truth)
    found = said[0] if said else units.without_noun(prediction)
    if asked and said:
        if asked[1].dimension == said[1].dimension:
            return (_pair(_times_factor(found, said[1]), _times_factor(number, asked[1])),)
        if asked[1].is_angle and said[1].is_angle:
            return (_pair(_in_radians(found, said[1]), _in_radians(number, asked[1])),)
        return False
    plain = _pair(found, number)
    if asked and asked[1].is_degree:
        return plain, _pair(found, _in_radians(number, asked[1]))
    if said and said[1].is_degree:
        return plain, _pair(_in_radians(found, said[1]), number)
    return (plain,)


def _times_factor(number: str, unit: units.Unit) -> str:
    if unit.factor == 1:
        return number
    return f"({number})\\cdot\\frac{{{unit.factor.numerator}}}{{{unit.factor.denominator}}}"


def _in_radians(number: str, unit: units.Unit) -> str:
    return f"({number})\\cdot\\frac{{\\pi}}{{180}}" if unit.is_degree else number


def _pair(prediction: str, truth: str) -> Pair:
    left, right = _MEMBER.fullmatch(prediction), _MEMBER.fullmatch(truth)
    if not (left and right and left[1] != right[1]):
        prediction, truth = left[2] if left else prediction, right[2] if right else truth
    return Pair(_parts(prediction), _parts(truth))


def _parts(text: str) -> tuple[str, ...]:
    if builder := _BUILDER.fullmatch(text):
        text = builder[2]
    parts = [part for part in _OR.split(text) if part]
    if len(parts) < 2 or not all(_RELATION.search(part) for part in parts):
        parts = [text]
    return tuple(to_latex(part) for part in parts)

"""Words that a parser of formulas takes for products of their letters.

`listen` and `silent` are one product, and so are `AB` and `BA`. Of two texts of the same letters in
another order the product says nothing where they are words or codes:

| texts                                                  | are                                     |
|--------------------------------------------------------|-----------------------------------------|
| nothing but letters, spaces and the marks of prose     | words: `ab`, `New York`, `O'Brien`      |
| letters and digits, a digit right behind a letter      | codes: `R2D2`                           |
| formulas with a run of four letters or more on each side | words in them: `12 listen`            |
| other formulas                                         | formulas: `2ab` is `2ba`                |
"""

from __future__ import annotations

import re

from turnwise.answers.notation import TEXT

_DRESS = re.compile(rf"{TEXT}\s*|[{{}}]")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_RUN = re.compile(r"[A-Za-z]+")
_PROSE = re.compile(r"[A-Za-z\s,.;:!?'\"/&-]+")
_CODE = re.compile(r"[A-Za-z0-9\s]*[A-Za-z][0-9][A-Za-z0-9\s]*")
_LETTERS = re.compile(r"[A-Za-z\s]+")
_LONG = 4
"""Letters of a run that is a word even among signs; a product of as many is rarely an answer."""


def reordered(one: str, other: str) -> bool:
    """Whether both are words or codes of the same letters in another order.

    Args:
        one, other: As `notation.to_latex` returns them.
    """
    left, right = _DRESS.sub(" ", one).casefold(), _DRESS.sub(" ", other).casefold()
    runs = [_RUN.findall(_COMMAND.sub(" ", text)) for text in (left, right)]
    spelled = ["".join(found) for found in runs]
    if sorted(spelled[0]) != sorted(spelled[1]):
        return False
    both = (left, right)
    if any(_CODE.fullmatch(text) for text in both):
        squeezed = ["".join(text.split()) for text in both]
        return squeezed[0] != squeezed[1] and sorted(squeezed[0]) == sorted(squeezed[1])
    if spelled[0] == spelled[1]:
        return False
    if all(_LETTERS.fullmatch(text) for text in both):
        return True
    long = all(max(map(len, found), default=0) >= _LONG for found in runs)
    prose = all(_PROSE.fullmatch(text) for text in both)
    return long or prose and all(max(map(len, found), default=0) > 1 for found in runs)

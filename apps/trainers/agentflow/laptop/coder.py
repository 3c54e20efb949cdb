"""What a coding model without understanding of words writes: real Python, run in the sandbox.

It turns formulas and the standing phrases of arithmetic and algebra into exact programs, whatever
the size of the numbers. It does not understand a story or know a fact: where it finds no formula
it adds up the numbers that it sees, and where it sees none it names what is asked and hopes that
the name is defined, so that the program ends with a NameError.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from re import Match

_NUMBER = r"-?[0-9]{1,300}"


def _divisor(found: Match[str]) -> str:
    return f"import math\n\nprint(math.gcd({found[1]}, {found[2]}))"


def _remainder(found: Match[str]) -> str:
    return f"print(pow({found[1]}, {found[2]}, {found[3]}))"


def _sum(found: Match[str]) -> str:
    term = "k**2" if "^" in found[1] else "k"
    return f"print(sum({term} for k in range({found[2]}, {found[3]} + 1)))"


def _quadratic(found: Match[str]) -> str:
    return (
        "import math\n\n"
        f"p, q = {found[1]}, {found[2]}\n"
        "root = math.isqrt(p * p - 4 * q)\n"
        "print((p + root) // 2)"
    )


def _system(found: Match[str]) -> str:
    a, b, e, c, sign, d, f = found.groups()
    d = f"-{d}" if sign == "-" else d
    return (
        "from fractions import Fraction\n\n"
        f"a, b, e = {a}, {b}, {e}\n"
        f"c, d, f = {c}, {d}, {f}\n"
        "print(Fraction(e * d - b * f, a * d - b * c))"
    )


def _line(found: Match[str]) -> str:
    a, b, c = found.groups()
    return f"from fractions import Fraction\n\nprint(Fraction({c} - {b}, {a}))"


def _formula(found: Match[str]) -> str:
    return f"print({found[1].replace('^', '**')})"


_RULES: tuple[tuple[re.Pattern[str], Callable[[Match[str]], str]], ...] = tuple(
    (re.compile(pattern), write)
    for pattern, write in (
        (rf"greatest common divisor of ({_NUMBER}) and ({_NUMBER})", _divisor),
        (rf"remainder when ({_NUMBER})\^({_NUMBER}) is divided by ({_NUMBER})", _remainder),
        (rf"sum of (all integers|k\^2 for k) from ({_NUMBER}) to ({_NUMBER})", _sum),
        (rf"larger root of x\^2 - ({_NUMBER}) \* x \+ ({_NUMBER}) = 0", _quadratic),
        (
            rf"({_NUMBER}) \* x \+ ({_NUMBER}) \* y = ({_NUMBER}) and "
            rf"({_NUMBER}) \* x ([+-]) ({_NUMBER}) \* y = ({_NUMBER})",
            _system,
        ),
        (rf"({_NUMBER}) \* x \+ ({_NUMBER}) = ({_NUMBER})", _line),
        (rf"({_NUMBER}(?: [-+*^] {_NUMBER})+)", _formula),
    )
)
_LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")
_STOPWORDS = frozenset("what is the how many does do have are in a an of number find".split())


def write_code(question: str) -> str:
    """A Python program that prints an answer, right or wrong; never raises."""
    question = _LEADING_ZEROS.sub("", question)
    for pattern, write in _RULES:
        if found := pattern.search(question):
            return write(found)
    numbers = re.findall(r"[0-9]+", question)
    if numbers:
        return f"print({' + '.join(numbers)})"
    words = [word for word in re.findall(r"[a-z]+", question.lower()) if word not in _STOPWORDS]
    return f"print({'_'.join(['number', 'of', *words])})"

"""What a model answers without a tool: it understands words, knows facts, and reckons in its head.

Head reckoning is exact in small numbers and plausible in large ones, with the mistakes that people
and models make:

1. a product is exact if one factor is at most 12 and the other at most 1000; else both factors
   are rounded to their first digit;
2. up to six terms are added one by one; more are taken as their mean times their number, which is
   miscounted by one;
3. common divisors are exact up to 50; beyond, only 2, 3, 5 and 10 are tried;
4. an equation in one unknown is solved by trying 0 to 12; of two equations the second is not seen;
   the roots of a quadratic are both taken for half of the coefficient, unless they are at most 12;
5. of a power only its base is looked at.

A question that is none of these is answered with "I can't say.".
"""

from __future__ import annotations

import math
import re

from apps.trainers.agentflow.laptop.problems import FACTS, UNITS, plural

UNKNOWN = "I can't say."

_NUMBER = r"(-?[0-9]{1,300})"
_ARITHMETIC = re.compile(rf"{_NUMBER} \* {_NUMBER} ([+-]) {_NUMBER}[.?]")
_RANGE = re.compile(rf"sum of (all integers|k\^2 for k) from {_NUMBER} to {_NUMBER}")
_DIVISOR = re.compile(rf"greatest common divisor of {_NUMBER} and {_NUMBER}")
_POWER = re.compile(rf"remainder when {_NUMBER}\^{_NUMBER} is divided by {_NUMBER}")
_LINEAR = re.compile(rf"{_NUMBER} \* x \+ {_NUMBER} = {_NUMBER}")
_SYSTEM = re.compile(rf"{_NUMBER} \* x \+ {_NUMBER} \* y = {_NUMBER} and")
_QUADRATIC = re.compile(rf"x\^2 - {_NUMBER} \* x \+ {_NUMBER} = 0")
_GIVES = re.compile(rf"has {_NUMBER} \w+ and gives {_NUMBER} of them")
_FILLS = re.compile(rf"fills {_NUMBER} \w+ with {_NUMBER} \w+ and (?:then )?(loses|gets) {_NUMBER}")
_MORE = re.compile(rf"ow many more (\w+) (?:do )?{_NUMBER} (\w+) have than {_NUMBER} (\w+)")
_SEVERAL = re.compile(rf"\b(\w+) (?:do|of) {_NUMBER} (\w+)")
_ONE = re.compile(r"\b(\w+) (?:does|of) an? (\w+)")
_AMOUNT = re.compile(rf"\b(\w+) (?:are )?in {_NUMBER} (\w+)(?: and {_NUMBER} \w+)?[.?]")
_UNIT = re.compile(r"\b(\w+) (?:are )?in an? (\w+)[.?]")

_COUNTS = {(part, name): count for thing, part, count in FACTS for name in (thing, plural(thing))}
_SIZES = {(small, name): count for unit, small, count in UNITS for name in (unit, plural(unit))}


def rough_answer(question: str) -> str:
    """The answer in a sentence that ends with its number, or `UNKNOWN`; never raises."""
    value = _formula(question)
    if value is None:
        value = _words(question)
    return UNKNOWN if value is None else f"I think the answer is {value}."


def _formula(question: str) -> int | None:
    if found := _ARITHMETIC.search(question):
        a, b, c = (int(found[group]) for group in (1, 2, 4))
        return product(a, b) + (c if found[3] == "+" else -c)
    if found := _RANGE.search(question):
        first, last = int(found[2]), int(found[3])
        return _range_sum(first, last, 2 if "^" in found[1] else 1)
    if found := _DIVISOR.search(question):
        a, b = int(found[1]), int(found[2])
        if max(abs(a), abs(b)) <= 50:
            return math.gcd(a, b)
        return max(d for d in (1, 2, 3, 5, 10) if a % d == b % d == 0)
    if found := _POWER.search(question):
        base, modulus = int(found[1]), int(found[3])
        return base % modulus if modulus else None
    return _equation(question)


def _range_sum(first: int, last: int, power: int) -> int:
    if last - first < 6:
        return sum(k * k if power == 2 else k for k in range(first, last + 1))
    ends = first * first + last * last if power == 2 else first + last
    return ends // 2 * (last - first)


def _equation(question: str) -> int | None:
    if found := _QUADRATIC.search(question):
        total, times = int(found[1]), int(found[2])
        roots = [x for x in range(13) if x * (total - x) == times and total - x <= 12]
        return max(roots, default=total // 2)
    if found := _SYSTEM.search(question):
        a, c = int(found[1]), int(found[3])
        return c // a if a else None
    if found := _LINEAR.search(question):
        a, b, c = (int(found[group]) for group in (1, 2, 3))
        return next((x for x in range(13) if a * x + b == c), (c - b) // a if a else None)
    return None


def _words(question: str) -> int | None:
    if found := _GIVES.search(question):
        return int(found[1]) - int(found[2])
    if found := _FILLS.search(question):
        held, moved = product(int(found[1]), int(found[2])), int(found[4])
        return held + moved if found[3] == "gets" else held - moved
    if found := _MORE.search(question):
        part, n, thing, m, other = found.groups()
        one, two = _COUNTS.get((part, thing)), _COUNTS.get((part, other))
        if one is None or two is None:
            return None
        return product(int(n), one) - product(int(m), two)
    if found := _AMOUNT.search(question):
        size = _SIZES.get((found[1], found[3]))
        return None if size is None else product(int(found[2]), size) + int(found[4] or 0)
    if found := _UNIT.search(question):
        return _SIZES.get((found[1], found[2]))
    if found := _SEVERAL.search(question):
        count = _COUNTS.get((found[1], found[3]))
        return None if count is None else product(int(found[2]), count)
    if found := _ONE.search(question):
        return _COUNTS.get((found[1], found[2]))
    return None


def product(a: int, b: int) -> int:
    """a times b as the head has it, rule 1 of the module."""
    small, large = sorted((abs(a), abs(b)))
    if small <= 12 and large <= 1000:
        return a * b
    return _first_digit(a) * _first_digit(b)


def _first_digit(number: int) -> int:
    size = int("1" + "0" * (len(str(abs(number))) - 1))
    return (number + size // 2) // size * size

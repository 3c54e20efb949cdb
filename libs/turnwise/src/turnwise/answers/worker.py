"""The process that compares formulas, and dies of those that take too long.

Reads one JSON line a question and answers with one. math-verify runs without timeouts of its own,
which need signals in the main thread and wait for Python code to get a turn. Here the kernel ends
the process when a question has used its processor time (SIGPROF) or, for a process whose parent is
gone or too busy to end it, its time on the clock (SIGALRM).

Formulas are read and taken apart by math-verify. Numbers in them are compared here, in place of its
rounding to six places:

1. Whole numbers, fractions and decimals are exact: a decimal is what its digits say. Two decimals
   are equal within 1e-12 of their size, which is what a computer's own rounding leaves.
2. Other numbers (roots, powers of pi) are equal within 1e-30 of their size.
3. A decimal for a number that has no end of decimals is right if it is that number, rounded or cut
   off, to six digits or more.
4. A percentage is its hundredth, or the number before its sign.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[A-Za-z]*\*?\}|\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{3}")
_DECIMALS_EQUAL = Fraction(1, 10**12)
_DIGITS = 50
_SAME_DIGITS = 30
_FEWEST_DIGITS = 6


def main(memory_mb: int) -> None:
    """Serves until its input ends. Its first line is `ready`, or `failed` with the reason."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    try:
        import math_verify  # type: ignore[import-untyped]

        # Where its comparison of sets, tuples, matrices and relations ends in numbers.
        math_verify.grader.sympy_numeric_eq = numbers_equal
        logging.disable(logging.CRITICAL)
        sys.set_int_max_str_digits(0)
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except Exception as error:
        answers.write(_line({"failed": f"{type(error).__name__}: {error}"}))
        return
    answers.write(_line({"ready": True}))
    for line in sys.stdin.buffer:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, question["cpu_s"])
        signal.setitimer(signal.ITIMER_REAL, question["alarm_s"])
        answer = _compare(math_verify, question["pairs"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(_line(answer))


def _compare(math_verify: Any, pairs: list[dict[str, list[str]]]) -> dict[str, Any]:
    """`equal` for any pair; null with `why`: `words` where a side is no formula, `costly`."""
    found: dict[str, Any] = {"equal": False}
    try:
        for pair in pairs:
            one = _pair_equal(math_verify, pair["prediction"], pair["truth"])
            if one["equal"]:
                return one
            found = one if one["equal"] is None else found
    except (MemoryError, RecursionError):
        return {"equal": None, "why": "costly"}
    return found


def _pair_equal(math_verify: Any, prediction: list[str], truth: list[str]) -> dict[str, Any]:
    gold, found = _parsed(math_verify, truth), _parsed(math_verify, prediction)
    same = math_verify.verify(gold, found, timeout_seconds=None, allow_set_relation_comp=True)
    if same or _same_set(gold, found):
        return {"equal": True}
    for texts, parsed in ((truth, gold), (prediction, found)):
        # Words are read as products of their letters: found equal they are, found different not.
        if all(isinstance(part, str) for part in parsed) or any(map(_has_words, texts)):
            return {"equal": None, "why": "words"}
    return {"equal": False}


def _parsed(math_verify: Any, texts: list[str]) -> list[Any]:
    """What math-verify makes of one formula; of several the union of their solutions."""
    if len(texts) == 1:
        return _parse(math_verify, texts[0])
    sets = [_as_set(_parse(math_verify, text)) for text in texts]
    if any(part is None for part in sets):
        return [" or ".join(texts)]
    import sympy  # type: ignore[import-untyped]

    return [sympy.Union(*(part[1] for part in sets if part is not None))]


def _parse(math_verify: Any, text: str) -> list[Any]:
    """The whole text as one formula; numbers in the middle of prose are not looked for."""
    # Units are split off before: here they would be dropped without a look.
    normal = math_verify.parser.NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all"
    )
    whole = [math_verify.LatexExtractionConfig(boxed_match_priority=0, normalization_config=normal)]
    return list(math_verify.parse(f"\\boxed{{{text}}}", whole, parsing_timeout=None))


def _same_set(gold: list[Any], found: list[Any]) -> bool:
    """Whether both are inequalities of one variable with the same solutions."""
    left, right = _as_set(gold), _as_set(found)
    return bool(left and right and left[0] == right[0] and left[1] == right[1])


def _as_set(parsed: list[Any]) -> tuple[Any, Any] | None:
    import sympy
    from sympy.core.relational import Relational  # type: ignore[import-untyped]

    one: Any = parsed[0] if parsed else None
    parts: list[Any] = list(one.args) if isinstance(one, sympy.And) else [one]
    if not all(isinstance(p, Relational) and not isinstance(p, sympy.Eq) for p in parts):
        return None
    symbols = set[Any]().union(*(part.free_symbols for part in parts))
    if len(symbols) != 1:
        return None
    try:
        solved = [part.as_set() for part in parts]
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return None
    return symbols.pop(), sympy.Intersection(*solved)


def numbers_equal(left: Any, right: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Whether two formulas are one number, or their difference is none. See the module.

    Takes the place of math-verify's own, whose two roundings it ignores. False decides nothing
    where variables are left: that is for its symbolic comparison.
    """
    import sympy

    if isinstance(left, sympy.MatrixBase) or isinstance(right, sympy.MatrixBase):
        return _matrices_equal(left, right, float_rounding, numeric_precision)
    if not isinstance(left, sympy.Expr) or not isinstance(right, sympy.Expr):
        return False
    (left, left_percent), (right, right_percent) = _without_percent(left), _without_percent(right)
    if left_percent != right_percent and _same_number(left, right):
        return True
    hundredth = sympy.Rational(1, 100)
    return _same_number(
        left * hundredth if left_percent and not right_percent else left,
        right * hundredth if right_percent and not left_percent else right,
    )


def _matrices_equal(left: Any, right: Any, *rounding: int) -> bool:
    import sympy

    if not all(isinstance(side, sympy.MatrixBase) for side in (left, right)):
        return False
    left, right = left.doit(), right.doit()
    return left.shape == right.shape and all(
        numbers_equal(one, other, *rounding) or sympy.simplify(one - other) == 0
        for one, other in zip(left.flat(), right.flat(), strict=True)
    )


def _without_percent(value: Any) -> tuple[Any, bool]:
    """The number before a percent sign, which math-verify reads as an unevaluated hundredth."""
    import sympy

    hundredth = sympy.UnevaluatedExpr(sympy.Rational(1, 100))
    if isinstance(value, sympy.Mul) and hundredth in value.args:
        return sympy.Mul(*(part for part in value.args if part != hundredth)), True
    return value, False


def _same_number(left: Any, right: Any) -> bool:
    import sympy

    places = [_places(side) for side in (left, right)]
    exact = [_exact(side) for side in (left, right)]
    if any(side.free_symbols for side in exact):
        return bool(sympy.expand(exact[0] - exact[1]) == 0)
    one, other = exact
    if all(side.is_Rational for side in exact):
        apart = abs(Fraction(int(one.p), int(one.q)) - Fraction(int(other.p), int(other.q)))
        size = max(abs(Fraction(int(side.p), int(side.q))) for side in exact)
        if (
            apart == 0
            or all(place is not None for place in places)
            and apart <= size * _DECIMALS_EQUAL
        ):
            return True
        if all(_ends(side) for side in exact):
            return False
    elif not all(side.is_number and side.is_finite is not False for side in exact):
        return bool(one == other)
    elif _close(one, other, sympy.Float(10) ** -_SAME_DIGITS):
        return True
    return any(
        place is not None and place[0] >= _FEWEST_DIGITS and _shortened(number, decimal, place[1])
        for place, decimal, number in zip(places, exact, reversed(exact), strict=True)
    )


def _close(one: Any, other: Any, share: Any) -> bool:
    """Within `share` of the larger; a number is close to zero only if it is zero."""
    left, right = one.evalf(_DIGITS), other.evalf(_DIGITS)
    size = max(abs(left), abs(right))
    return bool(size != 0 and abs(left - right) < share * size) or bool((one - other).is_zero)


def _shortened(number: Any, decimal: Any, unit: Any) -> bool:
    """Whether the decimal is the number, rounded or cut off at `unit`."""
    rest = ((number - decimal) / unit).evalf(_DIGITS) * (1 if decimal > 0 else -1)
    return bool(-0.5 <= rest < 1)


def _exact(value: Any) -> Any:
    """With decimals as the fractions that their digits say, and evaluated."""
    import sympy

    floats = {part: _fraction(part) for part in value.atoms(sympy.Float)}
    return value.xreplace(floats).doit()


def _fraction(value: Any) -> Any:
    import sympy

    # Fifteen digits are what a float keeps of those that were written.
    return sympy.Rational(str(Decimal(repr(float(value)))))


def _places(value: Any) -> tuple[int, Any] | None:
    """Of a decimal, perhaps times a power of ten: its digits, and one unit of the last."""
    import sympy

    decimals = value.atoms(sympy.Float)
    if len(decimals) != 1:
        return None
    (written,) = decimals
    rest = value.xreplace({written: sympy.Integer(1)}).doit()
    if not rest.is_Rational or rest == 0 or _power_of_ten(abs(rest)) is None:
        return None
    digits = Decimal(repr(float(written))).as_tuple()
    exponent = int(digits.exponent)
    return len(digits.digits), abs(rest) * sympy.Rational(10) ** exponent


def _power_of_ten(value: Any) -> int | None:
    text = str(max(value.p, value.q))
    return len(text) if text.strip("0") == "1" and min(value.p, value.q) == 1 else None


def _ends(value: Any) -> bool:
    """Whether a fraction has an end of decimals."""
    under = int(value.q)
    for prime in (2, 5):
        while under % prime == 0:
            under //= prime
    return under == 1


def _has_words(text: str) -> bool:
    return _WORD.search(_COMMAND.sub(" ", text)) is not None


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"

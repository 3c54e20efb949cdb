"""Measures: a number with its unit behind it, brought to common units.

    split(r"5 \\text{ cm}")     # ("5", Unit({("m", 1)}, 1/100))
    split(r"\\$5.00")           # ("5.00", Unit({("dollar", 1)}, 1))
    split("3 apples")          # None: a noun that is no unit of this table

Factors to the base units are exact. A letter alone, as in `5m`, may be a variable as well and
counts as a unit only where the other answer has one (`loose`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from turnwise.answers.notation import TEXT

DEGREE = "degree"
_F = Fraction
_TABLE: Mapping[str, tuple[tuple[tuple[str, int], ...], Fraction]] = {
    name: (base, factor)
    for names, base, factor in (
        ("nm nanometer nanometre", (("m", 1),), _F(1, 10**9)),
        ("\u03bcm \\mum micrometer micrometre micron", (("m", 1),), _F(1, 10**6)),
        ("mm millimeter millimetre", (("m", 1),), _F(1, 1000)),
        ("cm centimeter centimetre", (("m", 1),), _F(1, 100)),
        ("dm decimeter decimetre", (("m", 1),), _F(1, 10)),
        ("m meter metre", (("m", 1),), _F(1)),
        ("km kilometer kilometre", (("m", 1),), _F(1000)),
        ("in inch inches", (("m", 1),), _F(254, 10_000)),
        ("ft foot feet", (("m", 1),), _F(3048, 10_000)),
        ("yd yard", (("m", 1),), _F(9144, 10_000)),
        ("mi mile", (("m", 1),), _F(1_609_344, 1000)),
        ("mg milligram", (("kg", 1),), _F(1, 10**6)),
        ("g gram gm", (("kg", 1),), _F(1, 1000)),
        ("kg kilogram", (("kg", 1),), _F(1)),
        ("ton tonne", (("ton", 1),), _F(1)),
        ("oz ounce", (("lb", 1),), _F(1, 16)),
        ("lb pound", (("lb", 1),), _F(1)),
        ("ms millisecond", (("s", 1),), _F(1, 1000)),
        ("s sec second", (("s", 1),), _F(1)),
        ("min minute", (("s", 1),), _F(60)),
        ("h hr hour", (("s", 1),), _F(3600)),
        ("day", (("s", 1),), _F(86_400)),
        ("week", (("s", 1),), _F(604_800)),
        ("month", (("month", 1),), _F(1)),
        ("yr year", (("month", 1),), _F(12)),
        ("ml mL milliliter millilitre cc", (("m", 3),), _F(1, 10**6)),
        ("cl cL centiliter centilitre", (("m", 3),), _F(1, 10**5)),
        ("L l liter litre", (("m", 3),), _F(1, 1000)),
        ("gal gallon", (("gallon", 1),), _F(1)),
        ("ha hectare", (("m", 2),), _F(10_000)),
        ("acre", (("acre", 1),), _F(1)),
        ("mph", (("m", 1), ("s", -1)), _F(1_609_344, 3_600_000)),
        ("kmh kph", (("m", 1), ("s", -1)), _F(1000, 3600)),
        ("dollar USD", (("dollar", 1),), _F(1)),
        ("cent", (("dollar", 1),), _F(1, 100)),
        ("euro EUR", (("euro", 1),), _F(1)),
        ("yuan rupee yen", (("yuan", 1),), _F(1)),
        ("deg degree", ((DEGREE, 1),), _F(1)),
        ("rad radian", (("radian", 1),), _F(1)),
        ("\u00b0C celsius", (("celsius", 1),), _F(1)),
        ("\u00b0F fahrenheit", (("fahrenheit", 1),), _F(1)),
        ("K kelvin", (("kelvin", 1),), _F(1)),
        ("N newton", (("newton", 1),), _F(1)),
        ("kN kilonewton", (("newton", 1),), _F(1000)),
        ("J joule", (("joule", 1),), _F(1)),
        ("kJ kilojoule", (("joule", 1),), _F(1000)),
        ("eV", (("eV", 1),), _F(1)),
        ("W watt", (("watt", 1),), _F(1)),
        ("kW kilowatt", (("watt", 1),), _F(1000)),
        ("Pa pascal", (("pascal", 1),), _F(1)),
        ("kPa kilopascal", (("pascal", 1),), _F(1000)),
        ("atm", (("atm", 1),), _F(1)),
        ("Hz hertz", (("hertz", 1),), _F(1)),
        ("kHz", (("hertz", 1),), _F(1000)),
        ("MHz", (("hertz", 1),), _F(10**6)),
        ("V volt", (("volt", 1),), _F(1)),
        ("mV", (("volt", 1),), _F(1, 1000)),
        ("A amp ampere", (("ampere", 1),), _F(1)),
        ("mA", (("ampere", 1),), _F(1, 1000)),
        ("ohm \\Omega", (("ohm", 1),), _F(1)),
        ("C coulomb", (("coulomb", 1),), _F(1)),
        ("T tesla", (("tesla", 1),), _F(1)),
        ("mol mole", (("mol", 1),), _F(1)),
    )
    for name in names.split()
}

_MARKS = {
    "\\$": "dollar",
    "$": "dollar",
    "\u20ac": "euro",
    "\\pounds": "sterling",
    "\u00a3": "sterling",
}
_MONEY = re.compile(r"(-?)\s*(\\\$|\$|\u20ac|\u00a3|\\pounds)\s*(?=[\d.])")
_DEGREE_MARK = re.compile(
    rf"\s*(?:\^\s*(?:\{{\s*\\circ\s*\}}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z]))"
    rf"\s*(?:{TEXT}\s*\{{\s*([CF])\s*\}}|([CF]))?\s*$"
)
_TRIGONOMETRIC = re.compile(r"sin|cos|tan|cot|sec|csc")
"""Their degrees are the argument's, not the answer's."""
_IN_TEXT = re.compile(rf"\s*((?:{TEXT}\s*\{{[^{{}}]*\}}\s*(?:\^\s*(?:\{{-?\d\}}|-?\d))?[\s/]*)+)$")
_WORD = r"[A-Za-z\u03bc]+\.?(?:\^(?:\{-?\d\}|-?\d))?"
_AFTER_NUMBER = re.compile(rf"(?<=[\d}})])\s*({_WORD}(?:\s*(?:/|\bper\b|\s)\s*{_WORD})*)$")
_FRACTION_OF_UNITS = re.compile(
    rf"\\frac\s*\{{\s*({TEXT}\s*\{{[A-Za-z ]+\}})\s*\}}\s*\{{\s*({TEXT}\s*\{{[A-Za-z ]+\}})\s*\}}$"
)
_NO_UNIT = re.compile(r"(?<=[\d})])\s*(?:(?:sq|square|cu|cubic)\.?\s*)?units?(?:\^\{?\d\}?)?$")
_FONT = re.compile(rf"{TEXT}\s*\{{([^{{}}]*)\}}")
_POWER_WORDS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}


@dataclass(frozen=True, slots=True)
class Unit:
    """A product of powers of base units, and what one of it is in these."""

    dimension: frozenset[tuple[str, int]]
    factor: Fraction

    @property
    def is_degree(self) -> bool:
        return self.dimension == frozenset({(DEGREE, 1)})

    @property
    def is_angle(self) -> bool:
        return self.is_degree or self.dimension == frozenset({("radian", 1)})


def split(text: str, *, loose: bool = False) -> tuple[str, Unit] | None:
    """The number and its unit; None where no known unit stands behind (or, of money, before) it."""
    mark = _DEGREE_MARK.search(text)
    if mark and not _TRIGONOMETRIC.search(text):
        name = {"C": "\u00b0C", "F": "\u00b0F"}.get(mark[1] or mark[2] or "", DEGREE)
        return (text[: mark.start()].strip(), _unit(name)) if mark.start() else None
    if money := _MONEY.match(text):
        return money[1] + text[money.end() :], Unit(frozenset({(_MARKS[money[2]], 1)}), Fraction(1))
    text = _FRACTION_OF_UNITS.sub(r"\1/\2", text)
    if found := _IN_TEXT.search(text):
        unit = read(_FONT.sub(r" \1 ", found[1]).replace(" ^", "^"))
        return (text[: found.start()].strip(), unit) if unit and found.start() else None
    found = _AFTER_NUMBER.search(text)
    if found is None or not (loose or len(found[1]) > 1):
        return None
    unit = read(found[1])
    return None if unit is None else (text[: found.start()].strip(), unit)


def without_noun(text: str) -> str:
    """Without the words in `\\text{}` at its end, such as ` apples`, and `square units`."""
    text = _NO_UNIT.sub("", text)
    found = _IN_TEXT.search(text)
    if found is None or not found.start():
        return text
    words = _FONT.sub(r"\1", found[1]).lower().split()
    return (
        text if {"or", "and", "not", "if", "where"} & set(words) else text[: found.start()].strip()
    )


def read(words: str) -> Unit | None:
    """The unit that words or symbols name, such as `km/h`, `square feet` or `m s^{-2}`."""
    upper, *lower = re.split(r"\s*/\s*|\s+per\s+", words.strip())
    powers: Counter[str] = Counter()
    factor = Fraction(1)
    for part, sign in ((upper, 1), *((part, -1) for part in lower)):
        found = _product(part)
        if found is None:
            return None
        for base, power in found.dimension:
            powers[base] += sign * power
        factor *= found.factor**sign
    return Unit(frozenset((base, power) for base, power in powers.items() if power), factor)


def _product(words: str) -> Unit | None:
    powers: Counter[str] = Counter()
    factor, ahead, seen = Fraction(1), 1, False
    for word in re.split(r"\s+|\\cdot|\*", words.replace(".", "").strip()):
        name, _, power = word.partition("^")
        if name.lower() in _POWER_WORDS:
            ahead = _POWER_WORDS[name.lower()]
            continue
        known = _known(name)
        if known is None:
            return None
        exponent = ahead * int(power.strip("{}") or 1)
        ahead, seen = 1, True
        for base, times in known[0]:
            powers[base] += times * exponent
        factor *= known[1] ** exponent
    return Unit(frozenset(powers.items()), factor) if seen else None


def _known(name: str) -> tuple[tuple[tuple[str, int], ...], Fraction] | None:
    if name in _TABLE:
        return _TABLE[name]
    small = name.lower()
    for form in (small, small.removesuffix("s"), small.removesuffix("es")):
        if len(form) > 1 and form in _TABLE:
            return _TABLE[form]
    return None


def _unit(name: str) -> Unit:
    base, factor = _TABLE[name]
    return Unit(frozenset(base), factor)

"""Answers that are equal however they are written, and answers that only look so."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from turnwise.answers import MathVerifier, boxed

RIGHT = [
    ("\u00bd", "0.5"),
    ("1\u00bd", "3/2"),
    ("\u221a12", r"2\sqrt3"),
    ("2\u221a3", r"\sqrt{12}"),
    ("\u221a(2+2)", "2"),
    ("\u221b8", "2"),
    ("sqrt(2)/2", r"\frac{\sqrt2}{2}"),
    ("sqrt(3*(2+1))", "3"),
    (r"\sqrt 12", r"2\sqrt3"),
    (r"\sqrt[3]8", "2"),
    ("\u22123.5", "-3.5"),
    ("x\u00b2+1", "x^2+1"),
    ("10\u207b\u00b3", "0.001"),
    ("2^-1", "0.5"),
    ("2**10", "1024"),
    ("2^10", "1024"),
    ("3E8", r"3\times 10^{8}"),
    ("1.6e-19", r"1.6\times10^{-19}"),
    ("3x10^8", "3e8"),
    ("3*10^8", "300000000"),
    (r"0.\overline{3}", "1/3"),
    (r"0.\bar{3}", "1/3"),
    ("0.(3)", r"\frac13"),
    (r"0.1\overline{6}", "1/6"),
    ("0.1666...", "1/6"),
    (r"0.333\ldots", "1/3"),
    (r"0.\dot{3}", "1/3"),
    (r"0.\dot{1}4285\dot{7}", "1/7"),
    (r"0.9\overline{9}", "1"),
    ("1\u2009234", "1234"),
    ("1\u202f234\u202f567", "1234567"),
    ("1{,}234", "1234"),
    (r"12\;345", "12345"),
    (r"1\,234.5", "1234.5"),
    ("1 234", "1234"),
    ("$1,234$", "1234"),
    (r"1\!,234", "1234"),
    ("3:30", r"3:30 \text{ PM}"),
    ("03:30", "3:30"),
    (r"\text{3:30 p.m.}", "15:30"),
    ("3{:}30", "3:30"),
    (r"x \equiv 4 \pmod 5", r"-1 \pmod{5}"),
    ("25 (mod 1000)", "25"),
    (r"25 \mod 1000", "25"),
    ("25", r"x\equiv 25 \pmod{1000}"),
    (r"\begin{align*} x &= 20+5 \\ &= 25 \end{align*}", "25"),
    ("**25**", "25"),
    (r"\textbf{25}", "25"),
    (r"\mathbf{25}", "25"),
    (r"\text{25}", "25"),
    ("Answer: 25", "25"),
    (r"\textbf{Answer: } 25", "25"),
    ("25</s>", "25"),
    ("25<|endoftext|>", "25"),
    ("25<\uff5cend\u2581of\u2581sentence\uff5c>", "25"),
    ("C", "(C)"),
    (r"\text{(C)}", "C"),
    (r"\textbf{C}", "C"),
    ("C. 12", "C"),
    ("(C) 12", "C"),
    (r"\mathrm{C}", "C"),
    ("12", r"\textbf{(C)}\ 12"),
    (r"\textbf{(C)}\ 12", "12"),
    ("**(C)**", "C"),
    ("60 degrees", r"60^\circ"),
    ("60", r"60^\circ"),
    (r"60^{\circ}", "60"),
    ("60\u00b0", r"\frac{\pi}{3}"),
    (r"\frac{1}{2}", r"\sin 30^\circ"),
    (r"\frac{\pi}{3}\text{ rad}", r"60^\circ"),
    (r"500 \text{ cm}", r"5 \text{ m}"),
    ("5 m", r"5 \text{ m}"),
    ("5 meters", r"5\text{ m}"),
    ("5", r"5 \text{ m}"),
    (r"5\ \mathrm{m}", "5"),
    (r"\$5.00", "5"),
    (r"36 \text{ km/h}", r"10\text{ m/s}"),
    (r"12 \text{ cm}^2", r"12 \text{ square centimeters}"),
    (r"5 \text{ apples}", "5"),
    (r"1 \text{ hour}", r"60 \text{ minutes}"),
    ("3 cm", "3"),
    ("x>2", r"(2,\infty)"),
    (r"x \ge 2", r"[2,\infty)"),
    ("12.5>x>0", "0<x<12.5"),
    (r"x<1 \text{ or } x>2", r"(-\infty,1)\cup(2,\infty)"),
    (r"\{x \mid x > 2\}", r"(2,\infty)"),
    (r"x \neq 2", r"\mathbb{R}\setminus\{2\}"),
    (r"x\in(2,\infty)", "x>2"),
    (r"x \in [1,2]", "[1,2]"),
    ("(-\u221e,2)\u222a(2,\u221e)", r"x \neq 2"),
    (r"\{\}", r"\emptyset"),
    ("\u2205", r"\emptyset"),
    ("pi", r"\pi"),
    ("2pi", r"2\pi"),
    ("3\u03c0/4", r"\frac{3\pi}{4}"),
    ("52_{8}", "52_8"),
    ("101_2", "101_{2}"),
    ("52_{10}", "52"),
    ("0.333333", "1/3"),
    ("0.3333333333", r"\frac13"),
    ("3.14159265", r"\pi"),
    ("1.414214", r"\sqrt2"),
    ("0.30000000000000004", "0.3"),
    ("0.50", r"\frac12"),
    (r"50\%", "0.5"),
    ("50", r"50\%"),
    ("12.5", r"12.5\%"),
    (r"12.5\%", "0.125"),
    (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt6}"),
    ("(1,2)", "(1, 2)"),
    (r"(\frac12, 3)", "(0.5,3)"),
    (r"2\frac12", "5/2"),
    ("2 1/2", "2.5"),
    ("sin(x)", r"\sin x"),
    (r"\frac{1}{2^{99}}", "2^{-99}"),
    ("x = 5", "5"),
    ("y=2x+1", "y = 1+2x"),
    (r"\frac{1}{2004!}", r"\frac{1}{2004!}\ "),
    (r"\log_2 8", "3"),
    ("ln 2", r"\ln 2"),
    ("2+3i", "3i+2"),
    ("60", r"60\text{ apples}"),
    (r"\left(-\infty, 3\right]", r"x \le 3"),
    (r"-\frac{\pi}{2}", "-pi/2"),
    (r"\dfrac{\pi}{2}", "\u03c0/2"),
    (r"\text{no}", "no"),
    ("\uff11\uff12", "12"),
    ("(1, 234)", "(1,234)"),
    (r"\{1,\ 234\}", r"\{1, 234\}"),
    (r"1,\!234", "1234"),
]
"""Prediction and truth."""
WRONG = [
    ("1.6e-19", "6.6e-34"),
    ("0", "0.0000001"),
    ("(1/2^{98}, 3)", "(1/2^{99},3)"),
    ("x=1/2^{98}", "x=1/2^{99}"),
    ("[0,2^{-98}]", "[0,2^{-99}]"),
    (r"\{2^{-98}\}", r"\{2^{-99}\}"),
    (r"\sqrt2\cdot 10^{-34}", r"\sqrt3\cdot 10^{-34}"),
    ("x+10^{-20}", r"x+2\cdot10^{-20}"),
    (r"\begin{pmatrix}2^{-98}\\1\end{pmatrix}", r"\begin{pmatrix}2^{-99}\\1\end{pmatrix}"),
    ("10^{20}", "10^{20}+1"),
    ("3.14", r"\pi"),
    ("0.33", "1/3"),
    ("0.334", "1/3"),
    ("1.41", r"\sqrt2"),
    ("0.1000001", "0.1"),
    ("1000000.1", "1000000.2"),
    ("e^{-100}", "0"),
    ("e^{-100}", "e^{-101}"),
    ("0", "e^{-100}"),
    (r"10^{-10}\pi", r"10^{-11}\pi"),
    ("52_8", "52"),
    ("52_8", "52_9"),
    ("52_8", "53_8"),
    ("42", "52_8"),
    ("101", "101_2"),
    ("x=52_8", "52"),
    (r"5 \text{ m}", r"5 \text{ km}"),
    ("5 m", r"5\text{ cm}"),
    (r"5 \text{ kg}", r"5\text{ m}"),
    ("5m", "5"),
    ("3t", "3"),
    (r"5 \text{ dollars}", r"5 \text{ cents}"),
    (r"12 \text{ cm}", r"12\text{ cm}^2"),
    (r"60 \text{ rad}", r"60^\circ"),
    ("60", r"\frac{\pi}{3}"),
    (r"5 \text{ hours}", r"5 \text{ min}"),
    ("D", "C"),
    (r"\textbf{(D)}\ 12", "C"),
    ("(D) 12", "C"),
    ("3:30", "3:31"),
    (r"3:30 \text{ am}", "3:30 pm"),
    ("1:10", "3:30"),
    (r"25 \pmod{7}", r"25 \pmod{1000}"),
    (r"26 \pmod{1000}", "25"),
    (r"\text{not } 8", "8"),
    ("8 or maybe 9", "8"),
    ("x>2", r"[2,\infty)"),
    ("x<2", r"(2,\infty)"),
    (r"x \neq 3", r"(-\infty,2)\cup(2,\infty)"),
    (r"0.\overline{3}", "0.3"),
    ("0.3", "1/3"),
    (r"50\%", "5"),
    (r"\emptyset", "0"),
    ("3e8", "3e7"),
    (r"\sqrt{2}", "2"),
    ("y=5", "x=5"),
    ("(1,2)", "(2,1)"),
    ("[1,2)", "[1,2]"),
    (r"1\,234", "1235"),
    ("12", "C"),
    (r"x<1 \text{ or } x>3", r"(-\infty,1)\cup(2,\infty)"),
    ("0.1 x", "0.10000001 x"),
    (r"2 \text{ and } 3", "2"),
    ("1,2", "1"),
    ("(1, 234)", "1234"),
    ("100, 200", "100200"),
]


async def wrongly_decided(cases: dict[tuple[str, str], bool]) -> list[tuple[str, str]]:
    verifier = MathVerifier()
    try:
        return [
            pair for pair, right in cases.items() if (await verifier.equal(*pair) is True) != right
        ]
    finally:
        await verifier.close()


async def test_a_right_answer_is_right_however_it_is_written() -> None:
    assert await wrongly_decided(dict.fromkeys(RIGHT, True)) == []


async def test_what_has_another_value_unit_base_or_letter_is_not_right() -> None:
    assert await wrongly_decided(dict.fromkeys(WRONG, False)) == []


@pytest.mark.skipif(
    "TURNWISE_SHARED_DATA" not in os.environ, reason="needs the folder of public reports"
)
async def test_answers_of_public_reports_are_graded_as_they_should_be() -> None:
    path = Path(os.environ["TURNWISE_SHARED_DATA"], "public_files_2", "answers.tsv")
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    cases = {
        (boxed(json.loads(answer)) or "", json.loads(truth)): right == "1"
        for _, _, truth, answer, right, _ in rows
    }
    assert len(cases) == len(rows) and await wrongly_decided(cases) == []

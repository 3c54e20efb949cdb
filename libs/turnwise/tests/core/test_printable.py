"""Text from outside, as it is shown."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.command import PreflightError, run_command
from turnwise.episode import Boundary, BoundaryError, Ending
from turnwise.printable import one_line, printable

ANY = st.text(st.characters(codec=None))
EVIL = "\x1b]0;owned\x07 \x9b2J \u202egnp \ud800"


@given(text=ANY)
def test_no_control_is_left(text: str) -> None:
    shown = printable(text)
    shown.encode()
    left = {unicodedata.category(character) for character in shown if character not in "\n\t"}
    assert not left & {"Cc", "Cs", "Zl", "Zp"}
    assert printable(shown) == shown


def test_what_is_no_control_stays() -> None:
    text = "caf\u00e9\t\u4f60\u597d\n\U0001f600 a\u0301 \\x1b"
    assert printable(text) == text


@given(text=ANY, limit=st.integers(1, 50))
def test_one_line_is_one_line_of_its_length(text: str, limit: int) -> None:
    shown = one_line(text, limit)
    assert len(shown) <= limit and len(shown.splitlines()) <= 1


@pytest.mark.parametrize("kind", [PreflightError, lambda text: BoundaryError(Boundary.USER, text)])
def test_no_error_moves_the_cursor(kind: object, capsys: pytest.CaptureFixture[str]) -> None:
    def command(argv: object) -> int:
        raise kind(EVIL)  # type: ignore[operator]

    assert run_command(command, []) in (3, 4)
    assert capsys.readouterr().err == ("error: \\x1b]0;owned\\x07 \\x9b2J \\u202egnp \\ud800\n")


def test_what_lost_an_episode_is_printable_wherever_it_is_shown() -> None:
    error = BoundaryError(Boundary.USER, EVIL)
    assert str(error) == printable(EVIL) == Ending.lost(error).error

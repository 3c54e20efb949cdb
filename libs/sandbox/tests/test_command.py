"""The command that tries the sandbox, and the table it writes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from sandbox import Ran, Sandbox
from sandbox import __main__ as command
from sandbox.conformance import suite, table

HELD = suite.Program(family="files", name="one", tries="read | write", code="print('fine')")
HARMLESS = suite.Program(family="output", name="two", tries="print", code="print('ESCAPED')")


def attempts(*programs: suite.Program, wrong: str = "") -> list[suite.Attempt]:
    ran = Ran(out="", err="", seconds=0.1, tier="landlock", code=0)
    return [suite.Attempt(program=program, result=ran, wrong=wrong) for program in programs]


def test_the_table_has_a_row_for_each_program_and_a_column_for_each_tier() -> None:
    programs = suite.programs()
    tried = {"namespaces": attempts(*programs), "landlock": attempts(*programs)}
    text = table.render(programs, tried, {})  # type: ignore[arg-type]
    for program in programs:
        assert f"| {program.tries} | held | held |" in text
    assert f"{len(programs)} programs in 10 families; escapes: 0." in text


def test_an_escape_is_shown_in_its_row_and_counted() -> None:
    text = table.render([HELD], {"landlock": attempts(HELD, wrong="read a|b")}, {})
    assert "escapes: 1." in text and "**not held**: read a/b |" in text


def test_the_table_replaces_the_one_between_the_marks() -> None:
    page = f"above\n{table.BEGIN}\nold\n{table.END}\nbelow\n"
    new = table.render([HELD], {"landlock": attempts(HELD)}, {"namespaces": "no bwrap"})
    text = table.replace(page, new)
    assert text.startswith("above\n") and text.endswith("below\n") and "old" not in text
    assert "Not on this machine: namespaces (no bwrap)." in text
    assert table.replace(text, new) == text
    with pytest.raises(ValueError, match="no table to replace"):
        table.replace("nothing here", new)


def test_all_held_is_success_and_the_page_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "programs", lambda: [HELD])
    page = tmp_path / "page.md"
    page.write_text(f"{table.BEGIN}\n{table.END}\n")
    assert command.check(["--table", str(page)]) == 0
    assert "1 of 1 held" in capsys.readouterr().out
    assert "1 programs in 1 families" in page.read_text()


def test_what_needs_a_file_system_that_cannot_be_had_is_neither_held_nor_an_escape(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    filler = dataclasses.replace(HARMLESS, nameless=True)
    monkeypatch.setattr(suite, "programs", lambda: [HELD, filler])
    monkeypatch.setattr(Sandbox, "quotas", False)
    assert command.check([]) == 0
    assert "1 of 2 held\n  1 not tried: no file system" in capsys.readouterr().out
    excused = [dataclasses.replace(attempts(filler)[0], excused=True)]
    assert "not limited here |" in table.render([filler], {"landlock": excused}, {})


def test_an_escape_fails_the_preflight_and_names_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "programs", lambda: [HELD, HARMLESS])
    assert command.check([]) == 3
    seen = capsys.readouterr()
    assert "output, two: 1 attempts went through" in seen.out
    assert "were not held" in seen.err


def test_a_machine_without_a_tier_fails_the_preflight(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sandbox.pool.unmet", lambda tier: "not in this test")
    assert command.check([]) == 3
    seen = capsys.readouterr()
    assert "landlock: not here: not in this test" in seen.out


def test_a_page_without_a_place_for_the_table_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sandbox.pool.unmet", lambda tier: "not in this test")
    page = tmp_path / "page.md"
    page.write_text("no marks")
    assert command.check(["--table", str(page)]) == 2
    assert "no table to replace" in capsys.readouterr().err
    assert page.read_text() == "no marks"

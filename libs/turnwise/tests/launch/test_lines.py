import io
import time

from turnwise.config import ConfigError
from turnwise.preflight import Line, fail, note, ok, print_table, run_checks, skip


def test_lines_come_in_order_whatever_takes_longer() -> None:
    def slow() -> Line:
        time.sleep(0.1)
        return ok("a", "1")

    lines = list(run_checks({"a": slow, "b": lambda: [ok("b", "2"), note("b", "3")]}))
    assert [line.found for line in lines] == ["1", "2", "3"]


def test_a_check_that_breaks_proves_no_failure_and_one_that_refuses_fails_its_line_alone() -> None:
    def broken() -> Line:
        raise KeyError("x")

    def wrong() -> Line:
        raise ConfigError("load: is a file")

    lines = list(run_checks({"a": broken, "b": wrong, "c": lambda: ok("c", "")}))
    assert [line.verdict for line in lines] == ["note", "FAIL", "ok"]
    assert lines[0].found == "KeyError: 'x'"
    assert lines[1].found == "load: is a file"


def test_a_check_that_hangs_is_skipped_at_the_deadline_and_the_others_are_seen() -> None:
    lines = list(
        run_checks({"a": lambda: _sleep(1.0), "b": lambda: ok("b", "here")}, deadline_s=0.1)
    )
    assert [line.verdict for line in lines] == ["skip", "ok"]
    assert lines[0].found.startswith("no answer in")


def _sleep(seconds: float) -> Line:
    time.sleep(seconds)
    return ok("a", "late")


def test_the_table_shows_markup_as_it_is_and_sums_the_verdicts() -> None:
    out = io.StringIO()
    lines = [fail("x", "[red]not a colour[/red]", "remedy"), skip("y", ""), ok("z", "")]
    print_table(lines, out)
    assert "[red]not a colour[/red]" in out.getvalue()
    assert out.getvalue().rstrip().endswith("1 ok, 1 skip, 1 FAIL")

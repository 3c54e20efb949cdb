"""A table of checks: what was looked at, the verdict, what was found, what to do about it."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from turnwise.command import PreflightError
from turnwise.config import ConfigError

Verdict = Literal["ok", "note", "skip", "FAIL"]
# The whole table is promised in under a minute; what takes longer is no check but the run itself.
DEADLINE_S = 55.0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table.

    Attributes:
        name: What was looked at.
        verdict: `ok`; `note`, worth knowing; `skip`, could not be looked at from here; `FAIL`, the
            run would fail or be wrong.
        found: What is there, with numbers.
        remedy: What to do about a `FAIL` or a `note`.
    """

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Line:
    return Line(name, "ok", found)


def note(name: str, found: str, remedy: str = "") -> Line:
    return Line(name, "note", found, remedy)


def skip(name: str, found: str, remedy: str = "") -> Line:
    return Line(name, "skip", found, remedy)


def fail(name: str, found: str, remedy: str) -> Line:
    return Line(name, "FAIL", found, remedy)


Check = Callable[[], Line | Iterable[Line]]


def run_checks(checks: Mapping[str, Check], deadline_s: float = DEADLINE_S) -> Iterator[Line]:
    """Runs checks side by side and gives their lines in the order of `checks`.

    A check that raises a configuration or preflight error is a FAIL with what it said. One that
    breaks, or is not done by the deadline, has found nothing: that says nothing about the run. None
    keeps the others from being seen.
    """
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=max(1, len(checks)))
    until = time.monotonic() + deadline_s
    futures = {name: pool.submit(_lines, name, check) for name, check in checks.items()}
    try:
        for name, future in futures.items():
            try:
                yield from future.result(max(0.0, until - time.monotonic()))
            except concurrent.futures.TimeoutError:
                yield skip(
                    name,
                    f"no answer in {deadline_s:.0f} s",
                    "look at this machine's load and file systems, then check again",
                )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _lines(name: str, check: Check) -> list[Line]:
    try:
        made = check()
        return [made] if isinstance(made, Line) else list(made)
    except (ConfigError, PreflightError) as error:
        return [fail(name, str(error), "change what the message names")]
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return [note(name, said, "this check itself broke; please report it with this line")]


def print_table(lines: Sequence[Line], out: TextIO) -> None:
    """Prints the table and the sum of its verdicts."""
    from rich.table import Table
    from rich.text import Text

    from turnwise.console import OutputConsole

    colours = {"ok": "green", "note": "yellow", "skip": "dim", "FAIL": "bold red"}
    table = Table("check", "verdict", "found", "remedy", show_lines=False)
    for line in lines:
        verdict = Text(line.verdict, style=colours[line.verdict])
        table.add_row(Text(line.name), verdict, Text(line.found), Text(line.remedy))
    console = OutputConsole(file=out)
    console.print(table)
    counts = {verdict: sum(line.verdict == verdict for line in lines) for verdict in colours}
    console.print(", ".join(f"{number} {name}" for name, number in counts.items() if number))

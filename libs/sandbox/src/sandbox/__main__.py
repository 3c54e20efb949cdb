"""Tries the sandbox on this machine: `python -m sandbox`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from sandbox.conformance import suite, table
from sandbox.interpreter import SandboxUnavailable
from sandbox.pool import Sandbox
from sandbox.result import Tier

DESCRIPTION = (
    "Runs every hostile program of the conformance suite on each tier that this machine offers,"
    " about half a minute each, and says what was held. Exit codes: 0 all held on at least one"
    " tier, 2 usage, 3 no tier here or an escape."
)
TIERS: tuple[Tier, ...] = ("namespaces", "landlock")


def check(argv: Sequence[str]) -> int:
    """The command: tries every tier, prints a line each, and the escapes; returns the exit code."""
    parser = argparse.ArgumentParser(prog="sandbox", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "--table", type=Path, help="Markdown file whose generated table is replaced"
    )
    options = parser.parse_args(argv)
    try:
        page = "" if options.table is None else _page(options.table)
    except (OSError, ValueError) as error:
        return _failed(2, f"--table {options.table}: {error}")
    programs = suite.programs()
    tried, refused = asyncio.run(_try_all(programs))
    if options.table is not None:
        rendered = table.render(programs, tried, refused)
        options.table.write_text(table.replace(page, rendered), "utf-8")
    wrong = sum(bool(attempt.wrong) for attempts in tried.values() for attempt in attempts)
    if wrong:
        return _failed(3, f"{wrong} attempts were not held")
    if not tried:
        return _failed(3, "no tier holds on this machine; see the reasons above")
    return 0


def _failed(code: int, what: str) -> int:
    print(f"error: {what}", file=sys.stderr)
    return code


def _page(path: Path) -> str:
    text = path.read_text("utf-8")
    table.replace(text, "")
    return text


async def _try_all(
    programs: Sequence[suite.Program],
) -> tuple[dict[Tier, list[suite.Attempt]], dict[Tier, str]]:
    tried: dict[Tier, list[suite.Attempt]] = {}
    refused: dict[Tier, str] = {}
    for tier in TIERS:
        sandbox = Sandbox(suite.limits(tier))
        try:
            await sandbox.start()
        except SandboxUnavailable:
            refused[tier] = sandbox.refused[tier]
            print(f"{tier}: not here: {refused[tier]}")
            continue
        try:
            tried[tier] = await suite.run_suite(sandbox, programs)
        finally:
            await sandbox.close()
        wrong = [attempt for attempt in tried[tier] if attempt.wrong]
        excused = sum(attempt.excused for attempt in tried[tier])
        print(f"{tier}: {len(programs) - len(wrong) - excused} of {len(programs)} held")
        if excused:
            print(f"  {excused} not tried: no file system of limited size can be mounted here")
        for attempt in wrong:
            print(f"  {attempt.program.family}, {attempt.program.name}: {attempt.wrong}")
    return tried, refused


def main() -> None:
    try:
        code = check(sys.argv[1:])
    except KeyboardInterrupt:
        code = _failed(130, "interrupted")
    sys.exit(code)


if __name__ == "__main__":
    main()

"""Tries the sandbox on this machine: `python -m turnwise.sandbox`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from turnwise.command import PreflightError, run_command
from turnwise.config import CommandConfig, ConfigError, parse_args
from turnwise.sandbox.conformance import suite, table
from turnwise.sandbox.interpreter import SandboxUnavailable
from turnwise.sandbox.pool import Sandbox
from turnwise.sandbox.result import Tier

DESCRIPTION = (
    "Runs every hostile program of the conformance suite on each tier that this machine offers,"
    " about half a minute each, and says what was held. Exit codes: 0 all held on at least one"
    " tier, 2 usage, 3 no tier here or an escape."
)
TIERS: tuple[Tier, ...] = ("namespaces", "landlock")


class Options(CommandConfig):
    """What to do with the outcome."""

    table: Path | None = None
    """Markdown file whose generated table is replaced."""


def check(argv: Sequence[str]) -> None:
    """The command: tries every tier, prints a line each, and the escapes.

    Raises:
        ConfigError: when the file has no place for the table.
        PreflightError: when no tier is offered here, or one did not hold.
    """
    options = parse_args(Options, argv, prog="sandbox", description=DESCRIPTION)
    page = "" if options.table is None else _page(options.table)
    programs = suite.programs()
    tried, refused = asyncio.run(_try_all(programs))
    if options.table is not None:
        rendered = table.render(programs, tried, refused)
        options.table.write_text(table.replace(page, rendered), "utf-8")
    wrong = sum(bool(attempt.wrong) for attempts in tried.values() for attempt in attempts)
    if wrong:
        raise PreflightError(f"{wrong} attempts were not held")
    if not tried:
        raise PreflightError("no tier holds on this machine; see the reasons above")


def _page(path: Path) -> str:
    try:
        text = path.read_text("utf-8")
        table.replace(text, "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--table {path}: {error}") from None
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
        print(f"{tier}: {len(programs) - len(wrong)} of {len(programs)} held")
        for attempt in wrong:
            print(f"  {attempt.program.family}, {attempt.program.name}: {attempt.wrong}")
    return tried, refused


def main() -> None:
    sys.exit(run_command(check, sys.argv[1:]))


if __name__ == "__main__":
    main()

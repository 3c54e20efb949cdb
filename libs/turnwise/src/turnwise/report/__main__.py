"""Rebuilds a run's report: `python -m turnwise.report RUN_DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from turnwise.command import run_command
from turnwise.report import write_report

DESCRIPTION = (
    "Writes report.html into a run folder, from the files in it. The run may be under way or"
    " interrupted. Exit codes: 0 ok, 2 no run folder, or a broken file in it."
)


def rebuild(argv: Sequence[str]) -> None:
    """The command: writes the report and prints its path."""

    def report(run_dir: tyro.conf.Positional[Path]) -> Path:
        """
        Args:
            run_dir: The folder of a run: runs/METHOD-TIME.
        """
        return run_dir

    run_dir = tyro.cli(report, prog="report", description=DESCRIPTION, args=list(argv))
    print(write_report(run_dir))


def main() -> None:
    sys.exit(run_command(rebuild, sys.argv[1:]))


if __name__ == "__main__":
    main()

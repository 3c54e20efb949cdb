"""Rebuilds a run's report: `python -m turnwise.report RUN_DIR`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from turnwise.command import run_command
from turnwise.report import write_report

DESCRIPTION = (
    "Writes report.html into a run folder, from the files in it. The run may be under way or"
    " interrupted. Exit codes: 0 ok, 2 no run folder, or a broken file in it."
)


def rebuild(argv: Sequence[str]) -> None:
    """The command: writes the report and prints its path."""
    parser = argparse.ArgumentParser(prog="report", description=DESCRIPTION)
    parser.add_argument("run_dir", type=Path, help="the folder of a run: runs/METHOD-TIME")
    run_dir: Path = parser.parse_args(list(argv)).run_dir
    print(write_report(run_dir))


def main() -> None:
    sys.exit(run_command(rebuild, sys.argv[1:]))


if __name__ == "__main__":
    main()

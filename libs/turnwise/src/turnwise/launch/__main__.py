"""Asks after a run of the cluster, or ends it, by its run folder.

python -m turnwise.launch status RUN_DIR
python -m turnwise.launch stop RUN_DIR
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from turnwise.command import run_command
from turnwise.launch.start import status, stop

COMMANDS = {"status": status, "stop": stop}


def control(argv: Sequence[str]) -> int:
    """The command: 0, or 4 from `status` if the run failed or is gone."""
    parser = argparse.ArgumentParser(
        prog="turnwise.launch", description="Asks after a run of the cluster, or ends it."
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("run_dir", type=Path, help="the run folder")
    given = parser.parse_args(list(argv))
    return COMMANDS[given.command](given.run_dir.absolute())


if __name__ == "__main__":
    sys.exit(run_command(control, sys.argv[1:]))

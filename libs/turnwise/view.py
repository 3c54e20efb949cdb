"""A page over runs: curves, ledgers and episodes, of runs that are under way too.

./pants run libs/turnwise:view -- RUNS_DIR
"""

import sys

from turnwise.command import run_command
from turnwise.view.command import view

if __name__ == "__main__":
    sys.exit(run_command(view, sys.argv[1:]))

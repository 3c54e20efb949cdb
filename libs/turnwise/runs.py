"""Runs under way: what they do and wait for; pause, stop and change them.

./pants run libs/turnwise:runs -- status RUN_DIR
"""

import sys

from turnwise.command import run_command
from turnwise.runs.command import runs

if __name__ == "__main__":
    sys.exit(run_command(runs, sys.argv[1:]))

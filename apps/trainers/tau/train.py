"""Trains a tool-calling agent on tau-bench with GRPO.

./pants run apps/trainers/tau:train                   on this machine, with the shipped policy
./pants run apps/trainers/tau:train -- --help         every option
./pants run apps/trainers/tau:train -- --backend slime --config FILE      on a GPU cluster
"""

from __future__ import annotations

import sys
from functools import partial

from turnwise.command import run_command
from turnwise.local.command import train_method

if __name__ == "__main__":
    sys.exit(run_command(partial(train_method, "tau"), sys.argv[1:]))

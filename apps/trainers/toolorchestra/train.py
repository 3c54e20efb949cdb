"""Trains the orchestrator of ToolOrchestra with GRPO.

./pants run apps/trainers/toolorchestra:train                   on this machine, the shipped policy
./pants run apps/trainers/toolorchestra:train -- --help         every option
./pants run apps/trainers/toolorchestra:train -- --backend slime --config FILE     on a GPU cluster
"""

from __future__ import annotations

import sys
from functools import partial

from turnwise.command import run_command
from turnwise.local.command import train_method

if __name__ == "__main__":
    sys.exit(run_command(partial(train_method, "toolorchestra"), sys.argv[1:]))

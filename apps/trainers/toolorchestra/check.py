"""Looks at everything that a run on a cluster needs.

./pants run apps/trainers/toolorchestra:check -- --config FILE
"""

from __future__ import annotations

import sys
from functools import partial

from turnwise.command import run_command
from turnwise.launch.check import check

if __name__ == "__main__":
    sys.exit(run_command(partial(check, "toolorchestra"), sys.argv[1:]))

"""Trains any method: one of apps/trainers by its name, or one of your own.

./pants run libs/turnwise:train -- --method my_agent:MyAgent [options]
"""

import sys

from turnwise.arguments import of_any_method
from turnwise.command import run_command
from turnwise.local.command import method_before, train_method

if __name__ == "__main__":
    sys.exit(run_command(of_any_method(train_method, method_before), sys.argv[1:]))

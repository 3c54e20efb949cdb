"""Looks at everything that a run of any method on a cluster needs.

./pants run libs/turnwise:check -- --method my_agent:MyAgent --config FILE
"""

import sys

from turnwise.arguments import of_any_method
from turnwise.command import run_command
from turnwise.launch.check import check

if __name__ == "__main__":
    sys.exit(run_command(of_any_method(check), sys.argv[1:]))

"""Converts checkpoints of any method's run, by slime's own converters.

./pants run libs/turnwise:convert -- --method my_agent:MyAgent --config FILE
"""

import sys

from turnwise.arguments import of_any_method
from turnwise.command import run_command
from turnwise.launch.convert import convert

if __name__ == "__main__":
    sys.exit(run_command(of_any_method(convert), sys.argv[1:]))

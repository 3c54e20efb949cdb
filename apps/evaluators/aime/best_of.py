"""What the best of many runs is worth: the size of a maximum by chance alone.

./pants run apps/evaluators/aime:best_of -- --runs 170 --mean 18.7 --deviation 5.1 --claimed 30
"""

from __future__ import annotations

import sys

from turnwise.command import run_command
from turnwise.evaluation.best_of import best_of

if __name__ == "__main__":
    sys.exit(run_command(best_of, sys.argv[1:]))

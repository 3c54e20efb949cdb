"""Evaluates a policy on tau-bench.

    ./pants run apps/evaluators/tau:eval -- --hf-checkpoint DIR --env retail --task-split test
    ./pants run apps/evaluators/tau:eval -- --base-url URL --model NAME --api-key-env VAR

Every finished trial is on disk at once; an interrupted evaluation goes on with `--resume` and
plays none of them again. A trial that was lost (engine or customer failed) is played again then.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from turnwise.command import run_command
from turnwise.local.threads import wait_passively


def evaluate(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    # Set before torch is imported, which is why the work is imported here.
    wait_passively()
    from apps.evaluators.tau.run import evaluate_here

    return evaluate_here(argv)


def main() -> None:
    sys.exit(run_command(evaluate, sys.argv[1:]))


if __name__ == "__main__":
    main()

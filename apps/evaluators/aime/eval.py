"""Evaluates a model or a method on AIME, or on any problems with one right answer.

    ./pants run apps/evaluators/aime:eval -- --base-url URL --model NAME
    ./pants run apps/evaluators/aime:eval -- --hf-checkpoint DIR --method agentflow --data FILE
    ./pants run apps/evaluators/aime:eval -- --compare RUN_A RUN_B
    ./pants run apps/evaluators/aime:eval -- --rescore RUN_OR_FILE

Every attempt is on disk as soon as it is graded; an interrupted evaluation goes on with `--resume`
and makes none of them again.
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
    from apps.evaluators.aime.run import evaluate_here

    return evaluate_here(argv)


def main() -> None:
    sys.exit(run_command(evaluate, sys.argv[1:]))


if __name__ == "__main__":
    main()

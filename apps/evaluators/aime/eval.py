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
from functools import partial

from turnwise.command import run_command
from turnwise.evaluation.command import evaluate_benchmark

from apps.evaluators.aime.benchmark import Aime

if __name__ == "__main__":
    sys.exit(run_command(partial(evaluate_benchmark, Aime()), sys.argv[1:]))

"""Evaluates a policy on τ²-bench.

    ./pants run apps/evaluators/tau2:eval -- --hf-checkpoint DIR --env tau2-telecom-solo
    ./pants run apps/evaluators/tau2:eval -- --base-url URL --model NAME --env tau2-airline
    ./pants run apps/evaluators/tau2:eval -- --rescore RESULTS.json

Every finished trial is on disk at once; an interrupted evaluation goes on with `--resume` and
plays none of them again. A trial that was lost (engine, user or judge failed) is played again then.
"""

from __future__ import annotations

import sys
from functools import partial

from turnwise.command import run_command
from turnwise.evaluation.command import evaluate_benchmark

from apps.evaluators.tau2.benchmark import Tau2

if __name__ == "__main__":
    sys.exit(run_command(partial(evaluate_benchmark, Tau2()), sys.argv[1:]))

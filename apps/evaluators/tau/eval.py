"""Evaluates a policy on tau-bench.

    ./pants run apps/evaluators/tau:eval -- --hf-checkpoint DIR --env retail --task-split test
    ./pants run apps/evaluators/tau:eval -- --base-url URL --model NAME --api-key-env VAR

Every finished trial is on disk at once; an interrupted evaluation goes on with `--resume` and
plays none of them again. A trial that was lost (engine or customer failed) is played again then.
"""

from __future__ import annotations

import sys
from functools import partial

from turnwise.command import run_command
from turnwise.evaluation.command import evaluate_benchmark

from apps.evaluators.tau.benchmark import TauBench

if __name__ == "__main__":
    sys.exit(run_command(partial(evaluate_benchmark, TauBench()), sys.argv[1:]))

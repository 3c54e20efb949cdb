"""Evaluates reading of long texts: RULER-HQA and RULER's tasks.

./pants run apps/evaluators/ruler_hqa:eval -- --hf-checkpoint DIR --documents 50 200 800
./pants run apps/evaluators/ruler_hqa:eval -- --hf-checkpoint DIR --data 50=eval_50.json
./pants run apps/evaluators/ruler_hqa:eval -- --hf-checkpoint DIR --method full
./pants run apps/evaluators/ruler_hqa:eval -- --rescore results.jsonl
"""

from __future__ import annotations

import sys
from functools import partial

from turnwise.command import run_command
from turnwise.evaluation.command import evaluate_benchmark

from apps.evaluators.ruler_hqa.benchmark import RulerHqa

if __name__ == "__main__":
    sys.exit(run_command(partial(evaluate_benchmark, RulerHqa()), sys.argv[1:]))

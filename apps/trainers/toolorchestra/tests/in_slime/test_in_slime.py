"""ToolOrchestra through our hooks in slime itself. Skipped without a checkout of it.

    SLIME_CHECKOUT=DIR SLIME_PYTHON=PYTHON pytest apps/trainers/toolorchestra/tests/in_slime

As in `libs/turnwise/tests/slime/test_real_slime.py`, where tau's are; the outcome at the supported
commit is in `turnwise/slime/README.md`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parents[4] / "libs/turnwise/tests"
CHECKOUT = os.environ.get("SLIME_CHECKOUT")

pytestmark = pytest.mark.skipif(CHECKOUT is None, reason="SLIME_CHECKOUT names no folder")

CONTRACTS = {
    "CUSTOM_GENERATE_FUNCTION_PATH": "generate",
    "CUSTOM_RM_PATH": "reward_func",
    "DYNAMIC_SAMPLING_FILTER_PATH": "dynamic_filter",
    "CUSTOM_ROLLOUT_LOG_FUNCTION_PATH": "rollout_log",
    "CUSTOM_EVAL_ROLLOUT_LOG_FUNCTION_PATH": "eval_log",
    "CUSTOM_REWARD_POST_PROCESS_PATH": "post_process_rewards",
}


def run(*words: str, **environment: str) -> str:
    """A process whose path holds slime itself; its output, or a failure that shows it."""
    assert CHECKOUT is not None
    ours = [path for path in sys.path if path and not path.endswith("slime_standin")]
    path = [CHECKOUT, str(HERE), str(TESTS / "slime/real"), str(TESTS), *ours]
    done = subprocess.run(
        [os.environ.get("SLIME_PYTHON", sys.executable), *words],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_training_abort_and_evaluation_run_in_slimes_own_code() -> None:
    seen = json.loads(run(str(HERE / "rollouts.py")))
    assert (seen["training"]["rollouts"], seen["training"]["lost"]) == (24, 0)
    assert seen["with losses"]["lost"] > 0
    assert set(seen["with losses"]["lost by"]) == {"engine"}
    assert 0 < seen["evaluation"]["eval/questions/coverage"] < 1
    assert seen["abort"]["cancelled"] > 0
    customers = seen["customers"]
    assert (customers["rollouts"], customers["lost"]) == (24, 0) and customers["finished"] > 0
    print(json.dumps(seen))


def test_slimes_contract_tests_pass_with_our_hooks() -> None:
    # Imported first, so that the tests put no stub in place of what the hooks need.
    words = ["-c", "import transformers, ray, pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"]
    words += ["-q", "-p", "no:cacheprovider", "tests/plugin_contracts"]
    paths = {f"SLIME_CONTRACT_{name}": f"contract.{hook}" for name, hook in CONTRACTS.items()}
    assert " passed" in run(*words, **paths)

"""Our hooks against slime itself. Skipped without a checkout of it.

    SLIME_CHECKOUT=DIR SLIME_PYTHON=PYTHON pytest libs/turnwise/tests/slime/test_real_slime.py

PYTHON has what slime's rollout imports (torch, ray, transformers, httpx, wandb, pillow, ...) and
what this library does; the outcome at the supported commit is in `turnwise/slime/README.md`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
REAL = Path(__file__).parent / "real"
CHECKOUT = os.environ.get("SLIME_CHECKOUT")

pytestmark = pytest.mark.skipif(CHECKOUT is None, reason="SLIME_CHECKOUT names no folder")

CONTRACT_PATHS = {
    "CUSTOM_GENERATE_FUNCTION_PATH": "contract_hooks.generate",
    "CUSTOM_RM_PATH": "contract_hooks.reward_func",
    "DYNAMIC_SAMPLING_FILTER_PATH": "contract_hooks.dynamic_filter",
    "CUSTOM_ROLLOUT_LOG_FUNCTION_PATH": "contract_hooks.rollout_log",
    "CUSTOM_EVAL_ROLLOUT_LOG_FUNCTION_PATH": "contract_hooks.eval_log",
    "CUSTOM_REWARD_POST_PROCESS_PATH": "contract_hooks.post_process_rewards",
}


def run(*words: str, folder: Path, **environment: str) -> str:
    """A process whose path holds slime itself; its output, or a failure that shows it."""
    assert CHECKOUT is not None
    ours = [path for path in sys.path if path and not path.endswith("slime_standin")]
    path = os.pathsep.join([CHECKOUT, str(REAL), str(TESTS), *ours])
    done = subprocess.run(
        [os.environ.get("SLIME_PYTHON", sys.executable), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_training_partial_rollout_evaluation_and_conversion_run_in_slimes_own_code() -> None:
    assert CHECKOUT is not None
    seen = json.loads(run(str(REAL / "rollouts.py"), folder=Path(CHECKOUT)))
    assert seen["training"]["lost"] > 0 and seen["training"]["rows"] == 24
    assert seen["partial"]["went on"] > 0 and seen["partial"]["cancelled"] > 0
    assert seen["users"]["requests"] > 0 and seen["users"]["cancelled"] > 0
    assert seen["users"]["sent"] > seen["users"]["requests"]
    assert seen["turn_mean"]["compared"] > 8
    assert 0 < seen["evaluation"]["eval/parcels/coverage"] < 1
    assert 8 < seen["segments"]["rows"] <= 16
    assert (seen["segments"]["rollouts"], seen["segments"]["steps"]) == (8, 1)
    assert seen["gateway"]["rows"] > 24 and seen["gateway"]["lost"] > 0
    assert seen["gateway"]["aborted"]["cancelled"] > 0
    assert seen["fully_async"]["groups"] == 2


def test_slimes_contract_tests_pass_with_our_hooks() -> None:
    assert CHECKOUT is not None
    # Imported first, so that the tests put no stub in place of what the hooks need.
    words = ["-c", "import transformers, ray, pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"]
    words += ["-q", "-p", "no:cacheprovider", "tests/plugin_contracts"]
    variables = {f"SLIME_CONTRACT_{name}": path for name, path in CONTRACT_PATHS.items()}
    assert " passed" in run(*words, folder=Path(CHECKOUT), **variables)


def test_slimes_token_delta_tests_pass_with_ours_in_place_of_theirs(tmp_path: Path) -> None:
    assert CHECKOUT is not None
    example = tmp_path / "examples" / "tau-bench"
    example.mkdir(parents=True)
    (example / "token_delta.py").write_text("from tokendelta import get_token_delta\n")
    (tmp_path / "tests").mkdir()
    name = "tests/test_tau_bench_token_delta.py"
    shutil.copy(Path(CHECKOUT) / name, tmp_path / name)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    assert "5 passed" in run(*words, folder=tmp_path)

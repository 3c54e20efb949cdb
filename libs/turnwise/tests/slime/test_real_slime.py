"""Our hooks against slime itself. Skipped without a checkout of it.

    SLIME_CHECKOUT=DIR SLIME_PYTHON=PYTHON pytest libs/turnwise/tests/slime/test_real_slime.py

PYTHON has what slime's rollout imports (torch, ray, transformers, httpx, wandb, pillow, ...) and
what this library does; the outcome at the supported commit is in `turnwise/slime/README.md`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from turnwise.testing.slime_checkout import CHECKOUT, run_contract_tests, run_in_slime

TESTS = Path(__file__).parent.parent
REAL = Path(__file__).parent / "real"
PATH = (REAL, TESTS)

pytestmark = pytest.mark.skipif(CHECKOUT is None, reason="SLIME_CHECKOUT names no folder")


def test_training_partial_rollout_evaluation_and_conversion_run_in_slimes_own_code() -> None:
    seen = json.loads(run_in_slime(str(REAL / "rollouts.py"), path=PATH))
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
    assert " passed" in run_contract_tests("contract_hooks", PATH)


def test_slimes_token_delta_tests_pass_with_ours_in_place_of_theirs(tmp_path: Path) -> None:
    assert CHECKOUT is not None
    example = tmp_path / "examples" / "tau-bench"
    example.mkdir(parents=True)
    (example / "token_delta.py").write_text("from tokendelta import get_token_delta\n")
    (tmp_path / "tests").mkdir()
    name = "tests/test_tau_bench_token_delta.py"
    shutil.copy(Path(CHECKOUT) / name, tmp_path / name)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    assert "5 passed" in run_in_slime(*words, path=PATH, folder=tmp_path)

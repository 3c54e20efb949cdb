"""ToolOrchestra through our hooks in slime itself. Skipped without a checkout of it.

    SLIME_CHECKOUT=DIR SLIME_PYTHON=PYTHON pytest apps/trainers/toolorchestra/tests/in_slime

As in `libs/turnwise/tests/slime/test_real_slime.py`, where tau's are; the outcome at the supported
commit is in `turnwise/slime/README.md`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from turnwise.testing.slime_checkout import CHECKOUT, run_contract_tests, run_in_slime

HERE = Path(__file__).parent
TESTS = HERE.parents[4] / "libs/turnwise/tests"
PATH = (HERE, TESTS / "slime/real", TESTS)

pytestmark = pytest.mark.skipif(CHECKOUT is None, reason="SLIME_CHECKOUT names no folder")


def test_training_abort_and_evaluation_run_in_slimes_own_code() -> None:
    seen = json.loads(run_in_slime(str(HERE / "rollouts.py"), path=PATH))
    assert (seen["training"]["rollouts"], seen["training"]["lost"]) == (24, 0)
    assert seen["with losses"]["lost"] > 0
    assert set(seen["with losses"]["lost by"]) == {"engine"}
    assert 0 < seen["evaluation"]["eval/questions/coverage"] < 1
    assert seen["abort"]["cancelled"] > 0
    customers = seen["customers"]
    assert (customers["rollouts"], customers["lost"]) == (24, 0) and customers["finished"] > 0
    print(json.dumps(seen))


def test_slimes_contract_tests_pass_with_our_hooks() -> None:
    assert " passed" in run_contract_tests("contract", PATH)

"""AgentFlow through our hooks in slime itself. Skipped without a checkout of it.

    SLIME_CHECKOUT=DIR SLIME_PYTHON=PYTHON pytest apps/trainers/agentflow/tests/in_slime

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
OBJECTIVES = ("turn-mean", "rollout-token-mean", "global-token-mean")

pytestmark = pytest.mark.skipif(CHECKOUT is None, reason="SLIME_CHECKOUT names no folder")


def test_training_abort_evaluation_and_conversion_run_in_slimes_own_code() -> None:
    seen = json.loads(run_in_slime(str(HERE / "rollouts.py"), path=PATH))
    for objective in OBJECTIVES:
        whole = seen[objective]
        assert (whole["rollouts"], whole["lost"]) == (24, 0)
        assert len(whole["segments"]) > 2
        assert whole["largest difference of a weight"] < 1e-5
    torn = [seen[f"{objective}, with losses"] for objective in OBJECTIVES]
    assert any(one["unscored"] for one in torn)
    assert {name for one in torn for name in one["lost by"]} == {"engine", "sandbox"}
    assert seen["abort"]["cancelled"] > 0
    assert 0 < seen["evaluation"]["eval/problems/coverage"] < 1
    assert "lost to sandbox" in seen["no sandbox"]


def test_slimes_contract_tests_pass_with_our_hooks() -> None:
    assert " passed" in run_contract_tests("contract", PATH)

"""MemAgent through our hooks in slime itself. Skipped without a checkout of it.

    SLIME_CHECKOUT=DIR SLIME_PYTHON=PYTHON pytest apps/trainers/memagent/tests/in_slime

As in `libs/turnwise/tests/slime/test_real_slime.py`, where tau's are; the outcome at the supported
commit is in `turnwise/slime/README.md`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from turnwise.testing.slime_checkout import CHECKOUT, run_in_slime

HERE = Path(__file__).parent
TESTS = HERE.parents[4] / "libs/turnwise/tests"
PATH = (HERE, TESTS / "slime/real", TESTS)
OBJECTIVES = ("turn-mean", "rollout-token-mean", "global-token-mean")

pytestmark = pytest.mark.skipif(CHECKOUT is None, reason="SLIME_CHECKOUT names no folder")


def test_episodes_of_1_to_40_turns_train_and_are_evaluated_in_slimes_own_code() -> None:
    seen = json.loads(run_in_slime(str(HERE / "rollouts.py"), path=PATH))
    for objective in OBJECTIVES:
        whole = seen[objective]
        assert (whole["rollouts"], whole["lost"]) == (96, 0)
        assert whole["turns"][1] > 20
        assert any(len(set(rows)) > 1 for rows in whole["rows of each rank"])
        assert whole["largest difference of a weight"] < 1e-5
        assert seen[f"{objective}, with losses"]["lost"] > 0
    # A text of one section takes two turns, or one where the reader happens to keep nothing.
    shortest, longest = seen["step credit"]["turns"]
    assert shortest <= 2 and longest > 20
    assert (seen["step credit"]["rollouts"], seen["step credit"]["dropped"]) == (96, 0)
    assert seen["abort"]["cancelled"] > 0
    assert 0 < seen["evaluation"]["eval/texts/coverage"] < 1

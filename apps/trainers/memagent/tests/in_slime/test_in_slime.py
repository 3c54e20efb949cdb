"""MemAgent through our hooks in slime itself. Skipped without a checkout of it.

    SLIME_CHECKOUT=DIR SLIME_PYTHON=PYTHON pytest apps/trainers/memagent/tests/in_slime

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
OBJECTIVES = ("turn-mean", "rollout-token-mean", "global-token-mean")

pytestmark = pytest.mark.skipif(CHECKOUT is None, reason="SLIME_CHECKOUT names no folder")


def run(*words: str) -> str:
    """A process whose path holds slime itself; its output, or a failure that shows it."""
    assert CHECKOUT is not None
    ours = [path for path in sys.path if path and not path.endswith("slime_standin")]
    path = [CHECKOUT, str(HERE), str(TESTS / "slime/real"), str(TESTS), *ours]
    done = subprocess.run(
        [os.environ.get("SLIME_PYTHON", sys.executable), *words],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_episodes_of_1_to_40_turns_train_and_are_evaluated_in_slimes_own_code() -> None:
    seen = json.loads(run(str(HERE / "rollouts.py")))
    for objective in OBJECTIVES:
        whole = seen[objective]
        assert (whole["rollouts"], whole["lost"]) == (96, 0)
        assert whole["turns"][1] > 20
        assert any(len(set(rows)) > 1 for rows in whole["rows of each rank"])
        assert whole["largest difference of a weight"] < 1e-5
        assert seen[f"{objective}, with losses"]["lost"] > 0
    assert seen["step credit"]["turns"] == [1, 40]
    assert (seen["step credit"]["rollouts"], seen["step credit"]["dropped"]) == (96, 0)
    assert seen["abort"]["cancelled"] > 0
    assert 0 < seen["evaluation"]["eval/texts/coverage"] < 1

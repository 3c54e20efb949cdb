"""A broken file or option is one clear error: never a traceback, never a hang.

TURNWISE_FUZZ_CASES=10000 is the long run; CI tries some hundreds. A case is named by its number:
the same number breaks the same thing.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from turnwise.command import EXIT_CODES

from tests.fuzz.targets import TARGETS, Seeds, make_seeds

CASES = int(os.environ.get("TURNWISE_FUZZ_CASES", "300"))
FIRST = int(os.environ.get("TURNWISE_FUZZ_FIRST", "0"))
SHARES = {
    **{"policy_folder": 0.25, "checkpoint": 0.15, "run_folder": 0.15, "launch_record": 0.05},
    **{"evaluation": 0.1, "data_file": 0.1, "options": 0.1, "toml": 0.05, "cluster": 0.05},
}
"""Of the cases."""
LIMIT_S = 120
ERRORS = tuple(kind for kind, _ in EXIT_CODES)


class Hang(BaseException):
    """A case took too long."""


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    return make_seeds(tmp_path_factory.mktemp("seeds"))


@contextmanager
def bounded() -> Iterator[None]:
    def expired(*unused: object) -> None:
        raise Hang(f"more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("target", TARGETS)
def test_a_broken_input_is_one_clear_error(
    target: str, seeds: Seeds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    failures = []
    for number in range(FIRST, FIRST + max(1, int(CASES * SHARES[target]))):
        how, case = TARGETS[target](Random(f"{target} {number}"), seeds)
        try:
            with bounded():
                case()
        except ERRORS as error:
            if not str(error).strip() or len(str(error)) > 2000:
                failures.append(f"{number}: {how}: an error of {len(str(error))} letters")
        except SystemExit as error:
            if error.code not in (0, 2, 3, 4):
                failures.append(f"{number}: {how}: exit {error.code}")
        except (Exception, Hang) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(
                f"{number}: {how}: {type(error).__name__}: {str(error)[:100]}"
                f" ({Path(place.filename).name}:{place.lineno})"
            )
    assert not failures, f"{len(failures)} cases:\n" + "\n".join(failures[:60])

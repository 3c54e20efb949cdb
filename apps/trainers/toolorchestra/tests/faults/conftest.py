"""The stand-in slime on the path, and nothing of one test left for the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[5] / "libs/turnwise/tests"))
sys.path.insert(0, str(Path(__file__).parents[5] / "libs/turnwise/tests/slime_standin"))

import pytest
from slime.observability import logging_utils  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.utils.misc import SingletonMeta  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.errands import save_tokenizer
from turnwise.slime import accounts, shared


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tokenizer(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(accounts, "TRAIN", accounts.Accounts())
    shared._loops.clear()
    yield
    logging_utils.logged.clear()
    SingletonMeta._instances.clear()

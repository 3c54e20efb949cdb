"""The scripted engine in the place of the embedded one."""

from __future__ import annotations

import pytest
from turnwise.engine.scripted import ScriptedEngine, reply
from turnwise.evaluation import policies, run
from turnwise.evaluation.policies import Loaded

from apps.evaluators.aime.fakes import byte_tokenizer


class LastingEngine(ScriptedEngine):
    """Serves several evaluations one after the other."""

    async def close(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """In the place of the embedded engine."""
    made = LastingEngine(lambda prompt: reply([5, 2]))
    monkeypatch.setattr(run, "load", lambda *given: Loaded(None, byte_tokenizer(), 512))
    monkeypatch.setattr(policies, "_engine", lambda *given: made)
    return made

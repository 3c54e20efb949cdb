"""The scripted engine in the place of the embedded one."""

from __future__ import annotations

from typing import Any

import pytest
from apps.evaluators.aime.options import EvalOptions
from turnwise.engine.scripted import ScriptedEngine, reply

from apps.evaluators.aime import fakes, policies
from apps.evaluators.aime.fakes import byte_tokenizer


class LastingEngine(ScriptedEngine):
    """Serves several evaluations one after the other."""

    async def close(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """In the place of the embedded engine."""
    tokenizer = byte_tokenizer()
    made = LastingEngine(lambda prompt: reply([5, 2]))

    def local(options: EvalOptions) -> tuple[ScriptedEngine, Any, int]:
        return made, tokenizer, 512

    monkeypatch.setattr(policies, "_local_engine", local)
    fakes.made.clear()
    return made

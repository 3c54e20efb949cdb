"""A scripted engine in the place of the embedded one."""

from __future__ import annotations

from typing import Any

import pytest
from turnwise.engine.scripted import Reply, ScriptedEngine
from turnwise.evaluation import run
from turnwise.evaluation.policies import Loaded
from turnwise.testing import byte_policy, byte_tokenizer, decode, say

from evaluation.fakes import Echo


class LastingEngine(ScriptedEngine):
    """Serves several evaluations one after the other."""

    async def close(self) -> None:
        pass


def back(prompt: Any) -> Reply:
    """The last message of the user again."""
    text = decode(prompt).rpartition("<|im_start|>user\n")[2]
    return say(text.partition("<|im_end|>")[0])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """In the place of the embedded engine; says what it is told."""
    made = LastingEngine(back)
    monkeypatch.setattr(run, "load", lambda *given: Loaded(None, byte_tokenizer(), 1000))
    monkeypatch.setattr(run, "make_policy", lambda *given: byte_policy(made, max_new_tokens=512))
    for name, value in (("seen", []), ("played", []), ("interrupt", "")):
        monkeypatch.setattr(Echo, name, value)
    monkeypatch.setattr(Echo, "opened", 0)
    monkeypatch.setattr(Echo, "closed", 0)
    return made

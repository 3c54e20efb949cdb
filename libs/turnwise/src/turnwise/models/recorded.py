"""Frozen models of an episode that may be interrupted: what they answered is not asked again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from turnwise.models.protocol import Answer, FrozenModel, Message
from turnwise.run.jsonl import dump

if TYPE_CHECKING:
    from turnwise.rollout import Rollout

SHOWN = 80
"""Characters of a question that stand beside its hash, for the error where another is asked."""


def recorded(model: FrozenModel, rollout: Rollout[Any], *, asker: str = "") -> FrozenModel:
    """The model as the episode asks it: through the rollout's `Replay` where it has one.

    A method that asks frozen models through this can be interrupted and goes on where it was.

    Args:
        asker: Tells apart those parts of an episode that ask the model at the same time.
    """
    return model if rollout.replay is None else RecordedModel(model, rollout, asker)


class RecordedModel:
    """A frozen model of one episode whose answers are kept. Implements `FrozenModel`."""

    def __init__(self, model: FrozenModel, rollout: Rollout[Any], asker: str) -> None:
        assert rollout.replay is not None
        self.name = model.name
        self._calls = f"model/{model.name}/{asker}" if asker else f"model/{model.name}"
        self._model, self._replay = model, rollout.replay

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Answer:
        """See `FrozenModel`.

        Raises:
            BoundaryError: there is no answer, or something else is asked than was recorded.
        """

        async def make() -> dict[str, Any]:
            return asdict(await self._model.ask(messages, max_tokens=max_tokens, seed=seed))

        question = dump([list(messages), max_tokens, seed])
        asked = {
            "hash": hashlib.sha256(question.encode()).hexdigest(),
            "ends": str(messages[-1].get("content"))[-SHOWN:] if messages else "",
        }
        return Answer(**await self._replay.call(self._calls, asked, make))

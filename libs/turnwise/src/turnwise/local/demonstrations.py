"""What supervised training replays, and an engine that says it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokendelta
from numpy.typing import NDArray

from turnwise.engine import Completion, SamplingParams


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Recorded sequences, one after the other.

    Attributes:
        ids: uint16[N], all tokens.
        trained: bool[N], those to learn.
        offsets: int64[sequences + 1], where each begins, and N.
        flawed: bool[sequences], whether it holds a mistake made on purpose.
    """

    ids: NDArray[np.uint16]
    trained: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    flawed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.flawed)


def joined(samples: Sequence[tokendelta.Sample], flawed: Sequence[bool]) -> Demonstrations:
    """The segments of episodes as sequences, of which what was sampled is learnt.

    Args:
        samples: At least one.
        flawed: One a sample.
    """
    trained = [np.concatenate([np.zeros(s.prompt_length), s.loss_mask]) > 0 for s in samples]
    lengths = [len(sample.ids) for sample in samples]
    return Demonstrations(
        ids=np.concatenate([sample.ids for sample in samples]).astype(np.uint16),
        trained=np.concatenate(trained),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        flawed=np.array(flawed, dtype=bool),
    )


class Speaker(ABC):
    """An engine whose turns are text by a rule, each token with log-prob 0.

    It plays demonstrations and fixed behaviours through the loop that trains.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @abstractmethod
    def say(self, prompt_ids: NDArray[np.int32]) -> str:
        """The next turn, without its end of turn."""

    def read(self, prompt_ids: NDArray[np.int32]) -> str:
        """The text of a prompt, special tokens included."""
        return str(self._tokenizer.decode(prompt_ids.tolist(), skip_special_tokens=False))

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        """See `turnwise.engine.Engine`."""
        ids = self._tokenizer.encode(self.say(prompt_ids), add_special_tokens=False)
        turn = np.array([*ids, self._tokenizer.eos_token_id], dtype=np.int32)
        return Completion(turn, np.zeros(len(turn), dtype=np.float32), "stop")

    async def release(self, session_id: str) -> None:
        """See `turnwise.engine.Engine`."""
        return None

    async def close(self) -> None:
        """See `turnwise.engine.Engine`."""
        return None

"""What supervised training replays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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

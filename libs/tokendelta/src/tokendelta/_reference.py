"""The twin of `_core` in plain Python: the same results and refusals, without the speed.

Tests run both on the same calls. Nothing else imports this module.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOGPROB_ROUNDING = 1e-4
INT32_MAX = 2**31 - 1


def common_prefix(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    count = 0
    for a, b in zip(left.tolist(), right.tolist(), strict=False):
        if a != b:
            break
        count += 1
    return count


class Tokens:
    """A list of ids and a list of log-probs."""

    def __init__(self, capacity: int = 1024) -> None:
        self._ids: list[int] = []
        self._logprobs: list[float] = []

    @property
    def size(self) -> int:
        return len(self._ids)

    @property
    def sampled(self) -> int:
        return len(self._logprobs)

    def append_context(self, ids: Iterable[int], skip: int = 0) -> int:
        given = [int(i) for i in ids]
        if not 0 <= skip <= len(given):
            raise ValueError(f"cannot skip {skip} of {len(given)} ids")
        self._ids += given[skip:]
        return len(self._ids)

    def append_sampled(
        self, ids: Sequence[Any], logprobs: Sequence[Any], limit: int
    ) -> tuple[str, int] | None:
        limit = limit if limit > 0 else INT32_MAX
        checked: list[int] = []
        for index, item in enumerate(ids):
            try:
                value = operator.index(item)
            except TypeError:
                return ("id", index)
            if not 0 <= value < limit:
                return ("id", index)
            checked.append(value)
        scores: list[float] = []
        for index, item in enumerate(logprobs):
            try:
                score = float(item) if not isinstance(item, str) else math.nan
            except TypeError:
                return ("logprob", index)
            if not math.isfinite(score) or score > LOGPROB_ROUNDING:
                return ("logprob", index)
            scores.append(float(np.float32(score)))
        self._ids += checked
        self._logprobs += scores
        return None

    def view(self, start: int, stop: int) -> NDArray[np.int32]:
        return np.array(self._ids[start:stop], dtype=np.int32)

    def logprob_view(self, start: int, stop: int) -> NDArray[np.float32]:
        return np.array(self._logprobs[start:stop], dtype=np.float32)

    def find(self, token: int, start: int, stop: int) -> int:
        if not 0 <= start <= stop <= self.size:
            raise ValueError(f"range {start}..{stop} of {self.size} tokens")
        part = self._ids[start:stop]
        return start + part.index(token) if token in part else -1

    def branch(self, size: int, sampled: int) -> Tokens:
        if not 0 <= size <= self.size or not 0 <= sampled <= self.sampled:
            raise ValueError(f"cannot copy {size} of {self.size} tokens")
        other = Tokens()
        other._ids, other._logprobs = self._ids[:size], self._logprobs[:sampled]
        return other

    def truncate(self, size: int, sampled: int) -> None:
        if not 0 <= size <= self.size or not 0 <= sampled <= self.sampled:
            raise ValueError(f"cannot keep {size} of {self.size} tokens")
        del self._ids[size:]
        del self._logprobs[sampled:]

    def __getitem__(self, index: int) -> int:
        return self._ids[index]

    def __len__(self) -> int:
        return len(self._ids)


def fill_streams(
    mask: NDArray[np.uint8],
    logprobs: NDArray[np.float32],
    source: NDArray[np.float32],
    spans: NDArray[np.int64],
) -> None:
    if len(mask) != len(logprobs) or len(spans) % 3:
        raise ValueError(f"mask has {len(mask)} places, log-probs {len(logprobs)}")
    for start, stop, offset in spans.reshape(-1, 3).tolist():
        size = stop - start
        if not 0 <= start <= stop <= len(mask) or offset < 0 or offset + size > len(source):
            raise ValueError(f"span {start}..{stop} does not fit {len(mask)} places")
        mask[start:stop] = 1
        logprobs[start:stop] = source[offset : offset + size]


def pack_streams(
    ids: NDArray[np.int32],
    positions: NDArray[np.int32],
    mask: NDArray[np.uint8],
    logprobs: NDArray[np.float32],
    samples: list[tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.float32]]],
) -> None:
    if not len(ids) == len(positions) == len(mask) == len(logprobs):
        raise ValueError("the four streams differ in length")
    at = 0
    for sample_ids, sample_mask, sample_logprobs in samples:
        size, response = len(sample_ids), len(sample_mask)
        if response > size or len(sample_logprobs) != response:
            raise ValueError(f"{size} ids, {response} mask values, {len(sample_logprobs)} scores")
        if at + size > len(ids):
            raise ValueError(f"{size} tokens do not fit at {at} of {len(ids)}")
        prompt, end = at + size - response, at + size
        ids[at:end], positions[at:end] = sample_ids, range(size)
        mask[at:prompt], logprobs[at:prompt] = 0, np.nan
        mask[prompt:end], logprobs[prompt:end] = sample_mask, sample_logprobs
        at = end
    if at != len(ids):
        raise ValueError(f"{at} tokens given for {len(ids)} places")

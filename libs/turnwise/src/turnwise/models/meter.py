"""What the models behind endpoints used for one episode.

    with metering() as used:
        ...                        # requests of this task, and of tasks that it starts
    used.metrics()                 # {"user_requests": 3.0, "user_read_tokens": 812.0, ...}

A client counts what it pays for, by the boundary at which its failures are put down: a user's, a
judge's, an expert's. A request that several episodes wait for is the first one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from turnwise.episode import Boundary


class Meter:
    """Sums by boundary."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._usd: dict[str, float] = {}

    def count(self, boundary: Boundary, read: int, written: int, usd: float) -> None:
        """Adds an answer of that many tokens and US dollars."""
        name = boundary.value
        self._sums[f"{name}_requests"] += 1
        self._sums[f"{name}_read_tokens"] += read
        self._sums[f"{name}_written_tokens"] += written
        self._usd[f"{name}_usd"] = self._usd.get(f"{name}_usd", 0.0) + usd

    def metrics(self) -> dict[str, float]:
        """`NAME_requests`, `NAME_read_tokens`, `NAME_written_tokens` and `NAME_usd` of whom there
        was something to count of."""
        return {**{name: float(count) for name, count in self._sums.items()}, **self._usd}


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metering() -> Iterator[Meter]:
    """Counts what is asked inside."""
    meter = Meter()
    token = _METER.set(meter)
    try:
        yield meter
    finally:
        _METER.reset(token)


def count(boundary: Boundary, read: int, written: int, usd: float) -> None:
    """For clients: an answer was paid for."""
    meter = _METER.get()
    if meter is not None:
        meter.count(boundary, read, written, usd)

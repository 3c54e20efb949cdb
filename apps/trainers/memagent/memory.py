"""The memory of an episode, and what can be wrong with a new one."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

Fault = Literal["cut", "empty", "repeats"]
MemoryT = TypeVar("MemoryT")

REPEATS = 4
"""A block that many times in a row at the end is a loop ..."""
REPEATED = 24
"""... if it fills at least as many places together."""


def fault(memory: Any, *, cut: bool) -> Fault | None:
    """What is wrong with a new memory.

    Args:
        memory: Its ids, or its words.
        cut: Whether it ended at its limit and not by itself.
    """
    if len(memory) == 0:
        return "empty"
    if repeats(memory):
        return "repeats"
    return "cut" if cut else None


def repeats(memory: Any) -> bool:
    """Whether a sequence ends with one block over and over, a cut one behind it included.

    The block is found by its period: the longest end of the sequence that equals itself `period`
    places earlier. Time in proportion to the length times the periods tried, which are at most a
    quarter of it.
    """
    items = list(memory)
    for period in range(1, len(items) // REPEATS + 1):
        least = max(REPEATED, REPEATS * period)
        if least > len(items):
            continue
        tail = items[len(items) - least :]
        if tail[period:] == tail[:-period]:
            return True
    return False

"""A long text as sections: slices of its ids, encoded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.trainers.memagent.options import OnOverlong

Ids = NDArray[np.int32]


class TooLong(Exception):
    """A text has more sections than it may; says how many tokens that are."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of a text.

    Attributes:
        ids: int32[n].
        lost: Tokens that were cut off.
    """

    ids: Ids
    lost: int


def slices(pieces: Iterable[Ids], size: int) -> Iterator[Ids]:
    """Sections of `size` tokens, the last one shorter; joined they are the joined pieces.

    No more than a section and a piece is held at a time.
    """
    held: list[Ids] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        if count < size:
            continue
        joined = np.concatenate(held)
        whole = count - count % size
        yield from (joined[at : at + size] for at in range(0, whole, size))
        held, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(held)


def encoded(blocks: Iterable[str], encode: Callable[[str], Ids]) -> Iterator[Ids]:
    """The ids of each block."""
    return (encode(block) for block in blocks)


def bounded(sections: Iterable[Ids], most: int | None) -> Iterator[Ids]:
    """The sections, of which there may be `most`.

    Raises:
        TooLong: when the first one beyond is reached.
    """
    for number, section in enumerate(sections, start=1):
        if most is not None and number > most:
            raise TooLong(f"the text has more than {most} sections")
        yield section


def keep(ids: Ids, most: int | None, rule: OnOverlong) -> Kept:
    """At most `most` tokens of a text; centre keeps half of them at either end.

    Raises:
        TooLong: it is longer, and is refused.
    """
    lost = 0 if most is None else max(0, len(ids) - most)
    if not lost or most is None:
        return Kept(ids, 0)
    if rule == "refuse":
        raise TooLong(f"the text has {len(ids)} tokens, {lost} more than {most}")
    if rule == "head":
        return Kept(ids[:most], lost)
    if rule == "tail":
        return Kept(ids[lost:], lost)
    tail = most // 2
    return Kept(np.concatenate([ids[: most - tail], ids[len(ids) - tail :]]), lost)

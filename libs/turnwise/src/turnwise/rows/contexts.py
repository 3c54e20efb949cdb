"""Long contexts of documents: which ones, and where each stands.

The places of a question's own documents are drawn uniformly and anew for each item. With one seed
for all items, as published data sets have it, the answer would stand at the same few places in
every context of a length.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from typing import Literal

EvidenceOrder = Literal["random", "forward", "reverse"]


def arrange(
    own: int,
    pool: int,
    count: int,
    seed: int,
    *,
    order: EvidenceOrder = "random",
    left_out: Collection[int] = (),
) -> list[int]:
    """Documents of a context in order: own ones are 0 to own - 1, others own + place in the pool.

    Args:
        own: Documents that must be there.
        pool: Others that there are; each is taken once at most.
        count: Documents of the context.
        seed: Of this item.
        order: Of the own ones among themselves.
        left_out: Places in the pool that must not be taken, such as the own documents'.

    Raises:
        ValueError: the context is smaller than its own documents, or there are not enough others.
    """
    needed, there = count - own, pool - len(left_out)
    if needed < 0 or needed > there:
        raise ValueError(
            f"a context of {count} documents with {own} of its own needs {max(needed, 0)} others,"
            f" and there are {there}"
        )
    rng = random.Random(seed)
    if left_out:
        others = rng.sample([place for place in range(pool) if place not in left_out], needed)
    else:
        others = rng.sample(range(pool), needed)
    places = sorted(rng.sample(range(count), own))
    if order == "random":
        rng.shuffle(places)
    elif order == "reverse":
        places.reverse()
    at = dict(zip(places, range(own), strict=True))
    rest = iter(others)
    return [at[place] if place in at else own + next(rest) for place in range(count)]


def blocks(documents: Iterable[str]) -> Iterator[str]:
    """Documents as they stand in a context: numbered from 1, each block ending in a blank line."""
    for number, document in enumerate(documents, start=1):
        yield f"Document {number}:\n{document}\n\n"

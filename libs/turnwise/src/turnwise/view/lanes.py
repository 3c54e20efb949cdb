"""Segments of an episode as lanes under each other: what each shares with one before, and who wrote
what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from turnwise.run.traces import Trace
from turnwise.view.tokens import Segment

MAX_LANES = 64
"""Segments that are drawn."""
MAX_PARTS = 400
"""Stretches drawn of a segment; one of more has its shorter ones left out."""
Json = dict[str, Any]


class _Rewrite(msgspec.Struct, frozen=True):
    turn: int
    where: str
    certain: bool = True


def lanes(segments: Sequence[Segment]) -> list[Json]:
    """One a segment: tokens, its first turn, the lane that it forks from with the tokens they
    share, and `[author, trained, start, stop]` of its stretches. None for a single segment."""
    if len(segments) < 2:
        return []
    found = []
    for number, segment in enumerate(segments[:MAX_LANES]):
        parent, shared = None, 0
        for other in range(number):
            common = _common(segments[other].ids, segment.ids)
            if common > shared:
                parent, shared = other, common
        found.append(
            {
                "tokens": len(segment.ids),
                "parent": parent,
                "shared": shared,
                "weight": segment.weight,
                "parts": _parts(segment),
            }
        )
    return found


def rewrites(trace: Trace) -> list[str]:
    """Where the template showed history otherwise than it was sampled, in words."""
    said = trace.info.get("rewrites")
    found = []
    for one in said if isinstance(said, list) else ():
        try:
            rewrite = msgspec.convert(one, _Rewrite)
        except msgspec.ValidationError:
            continue
        sure = "" if rewrite.certain else ", by the profile; it was not checked"
        found.append(f"before turn {rewrite.turn + 1}: {rewrite.where}{sure}")
    return found


def _parts(segment: Segment) -> list[tuple[str, bool, int, int]]:
    parts: list[tuple[str, bool, int, int]] = [
        (author, block.trained and author == block.author, start, stop)
        for block in segment.blocks
        for author, start, stop in block.pieces
    ]
    if len(parts) > MAX_PARTS:
        longest = sorted(parts, key=lambda part: part[2] - part[3])[:MAX_PARTS]
        parts = sorted(longest, key=lambda part: part[2])
    return parts


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    size = min(len(one), len(other))
    differing = np.flatnonzero(one[:size] != other[:size])
    return int(differing[0]) if differing.size else size

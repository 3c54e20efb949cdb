"""Sequences to bins, bins to ranks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def first_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Bins of indices whose sizes sum to at most `capacity`; ties keep their order.

    At most 11/9 of the best number of bins, plus 6/9 (Dosa 2007). No size may exceed the capacity.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        size = sizes[index]
        place = next((place for place, free in enumerate(room) if free >= size), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(capacity)
        bins[place].append(index)
        room[place] -= size
    return bins


def split_to_multiple(bins: list[list[int]], sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Split the fullest bins of more than one member until the count is a multiple of `parts`.

    With fewer members than that, every member has a bin of its own.
    """
    bins = [list(members) for members in bins]
    while len(bins) % parts:
        whole = [members for members in bins if len(members) > 1]
        if not whole:
            break
        fullest = max(whole, key=lambda members: sum(sizes[i] for i in members))
        bins.remove(fullest)
        halves = karmarkar_karp([float(sizes[i]) for i in fullest], 2)
        bins += [[fullest[i] for i in half] for half in halves if half]
    return bins


def karmarkar_karp(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Indices in `parts` groups of near equal cost and, if it divides, equal count.

    The largest differencing method (Karmarkar and Karp 1982) on tuples of `parts` groups: costs in
    order are cut into runs of `parts`, one for each group, and the two tuples with the largest
    spread are merged, the heaviest group of one with the lightest of the other, until one is left.
    """
    order = sorted(range(len(costs)), key=lambda i: -costs[i])
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for start in range(0, len(order), parts):
        run = [(costs[i], [i]) for i in order[start : start + parts]]
        run += [(0.0, []) for _ in range(parts - len(run))]
        heap.append((-(run[0][0] - run[-1][0]), start, run))
    if not heap:
        return [[] for _ in range(parts)]
    heapq.heapify(heap)
    serial = len(order)
    while len(heap) > 1:
        _, _, left = heapq.heappop(heap)
        _, _, right = heapq.heappop(heap)
        merged = [
            (a + b, members + others)
            for (a, members), (b, others) in zip(left, reversed(right), strict=True)
        ]
        merged.sort(key=lambda group: -group[0])
        serial += 1
        heapq.heappush(heap, (-(merged[0][0] - merged[-1][0]), serial, merged))
    return [members for _, members in heap[0][2]]

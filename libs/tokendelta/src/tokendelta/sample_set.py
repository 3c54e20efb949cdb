"""Segments to samples: every sampled token once, or listed with the reason why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokendelta._core import fill_streams
from tokendelta.sample import Drop, DropReason, Sample, SampleSet
from tokendelta.segment import Block, Segment, Turn
from tokendelta.spans import spans_of

if TYPE_CHECKING:
    from tokendelta.profile import Profile
    from tokendelta.state import Record


# Turns that are not trained, with the reason and what the caller says of it.
Withheld = dict[Turn, tuple[DropReason, str]]


def make_samples(
    record: Record, max_len: int | None, withheld: Withheld | None = None
) -> SampleSet:
    """One sample a segment, cut at `max_len`; a segment without a trained token gives none.

    A turn that several segments share is trained in the first sample that holds it, after cutting,
    and is context in the others. A turn that is withheld is context everywhere.
    """
    kept_back = withheld or {}
    claimed: dict[Turn, Block] = {}
    kept: list[tuple[Segment, list[Block], set[Turn]]] = []
    for segment in record.segments:
        blocks = [b for b in segment.blocks if max_len is None or b.stop <= max_len]
        own = {
            b.turn: b
            for b in blocks
            if b.turn is not None and b.turn not in claimed and b.turn not in kept_back
        }
        trained = [b for b in blocks if b.turn in own and b.stop > b.start]
        if not trained:
            continue
        claimed |= own
        kept.append((segment, blocks[: blocks.index(trained[-1]) + 1], set(own)))
    total = sum(_trained(blocks, own) for _, blocks, own in kept)
    samples = [
        _sample(record.profile, segment, blocks, own, _trained(blocks, own) / total)
        for segment, blocks, own in kept
    ]
    return SampleSet(tuple(samples), tuple(_dropped(record.segments, claimed, kept_back)))


def _dropped(
    segments: Sequence[Segment], claimed: Mapping[Turn, Block], withheld: Withheld
) -> Iterator[Drop]:
    """Every sampled token that is in no sample: what was withheld or cut, and stop tokens that were
    replaced where their turn is trained."""
    seen: set[Turn] = set()
    for segment in segments:
        for block in segment.blocks:
            turn = block.turn
            if turn is None or turn in seen:
                continue
            seen.add(turn)
            if turn in withheld:
                yield Drop(turn.number, segment.number, turn.sampled, *withheld[turn])
                continue
            size = block.stop - block.start
            if turn not in claimed and size:
                yield Drop(turn.number, segment.number, size, "over max_len")
            else:
                held = claimed.get(turn, block)
                size = held.stop - held.start
            if size < turn.sampled:
                yield Drop(turn.number, segment.number, turn.sampled - size, "header replaced")


def _trained(blocks: Sequence[Block], own: set[Turn]) -> int:
    return sum(block.stop - block.start for block in blocks if block.turn in own)


def _sample(
    profile: Profile, segment: Segment, blocks: list[Block], own: set[Turn], weight: float
) -> Sample:
    tokens = segment.tokens
    size = blocks[-1].stop
    start = next(b.start for b in blocks if b.turn in own and b.stop > b.start)
    mask = np.zeros(size - start, dtype=np.uint8)
    logprobs = np.full(size - start, np.nan, dtype=np.float32)
    places = [
        place
        for block in blocks
        if block.turn in own and block.stop > block.start
        for place in (block.start - start, block.stop - start, block.logprob)
    ]
    fill_streams(
        mask,
        logprobs,
        tokens.logprob_view(0, tokens.sampled),
        np.array(places, dtype=np.int64),
    )
    last = blocks[-1].turn
    return Sample(
        ids=tokens.view(0, size),
        prompt_length=start,
        loss_mask=_frozen(mask),
        logprobs=_frozen(logprobs),
        spans=spans_of(profile, tokens, blocks, own),
        weight=weight,
        segment=segment.number,
        finish=last.finish if last is not None else "stop",
        side=_side(blocks, own, size),
    )


def _side(blocks: Sequence[Block], own: set[Turn], size: int) -> dict[str, NDArray[Any]]:
    """Side streams over all ids: -1 (NaN for floats, 0 without a sign) where nothing was given."""
    streams: dict[str, NDArray[Any]] = {}
    for block in blocks:
        if block.turn is None or block.turn not in own:
            continue
        for name, offset, rows in block.turn.side or ():
            if name not in streams:
                streams[name] = np.full((size, *rows.shape[1:]), _missing(rows), dtype=rows.dtype)
            at = block.start + offset
            rows = rows[: max(block.stop - at, 0)]
            streams[name][at : at + len(rows)] = rows
    return {name: _frozen(stream) for name, stream in streams.items()}


def _missing(rows: NDArray[Any]) -> float | int:
    return {"f": np.nan, "i": -1}.get(rows.dtype.kind, 0)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array

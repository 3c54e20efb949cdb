"""Segments to samples: every sampled token once, or listed with the reason why not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokendelta._core import fill_streams
from tokendelta.sample import Drop, Sample, SampleSet, Span
from tokendelta.segment import Block, Segment


def finalize(segments: Sequence[Segment], max_len: int | None) -> SampleSet:
    """One sample a segment, cut at `max_len`; a segment without a trained token gives none."""
    kept: list[tuple[int, Segment, list[Block]]] = []
    dropped: list[Drop] = []
    for number, segment in enumerate(segments):
        blocks = _fitting(segment.blocks, max_len)
        cut = segment.blocks[len(blocks) :]
        while blocks and not blocks[-1].sampled:
            blocks.pop()
        for block in cut:
            if block.sampled and block.stop > block.start:
                dropped.append(Drop(block.turn, number, block.stop - block.start, "over max_len"))
        if any(block.sampled and block.stop > block.start for block in blocks):
            kept.append((number, segment, blocks))
    total = sum(_trained(blocks) for _, _, blocks in kept)
    samples = [
        _sample(number, segment, blocks, _trained(blocks) / total)
        for number, segment, blocks in kept
    ]
    return SampleSet(tuple(samples), tuple(dropped))


def _trained(blocks: Sequence[Block]) -> int:
    return sum(block.stop - block.start for block in blocks if block.sampled)


def _fitting(blocks: Sequence[Block], max_len: int | None) -> list[Block]:
    if max_len is None:
        return list(blocks)
    return [block for block in blocks if block.stop <= max_len]


def _sample(number: int, segment: Segment, blocks: list[Block], weight: float) -> Sample:
    tokens = segment.tokens
    size = blocks[-1].stop
    prompt_length = next(block.start for block in blocks if block.sampled)
    mask = np.zeros(size - prompt_length, dtype=np.uint8)
    logprobs = np.full(size - prompt_length, np.nan, dtype=np.float32)
    places = [
        place
        for block in blocks
        if block.sampled
        for place in (block.start - prompt_length, block.stop - prompt_length, block.logprob)
    ]
    fill_streams(
        mask,
        logprobs,
        tokens.logprob_view(0, tokens.sampled),
        np.array(places, dtype=np.int64),
    )
    mask.flags.writeable = False
    logprobs.flags.writeable = False
    spans = tuple(
        Span(block.kind, block.turn, block.start, block.stop, block.sampled) for block in blocks
    )
    return Sample(tokens.view(0, size), prompt_length, mask, logprobs, spans, weight, number)

"""The full checks of a debug build. A release build never calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokendelta.sample_set import make_samples
from tokendelta.segment import Segment, Turn

if TYPE_CHECKING:
    from tokendelta.state import Record


def check_record(record: Record) -> None:
    """Raises AssertionError for the first invariant that a record breaks.

    I1  the ids before every turn are the prompt that was handed out: marks are places in the ids.
    I2  sampled blocks hold their turn's ids; turns that are shared agree in every segment, but
        for a stop token at the end that a segment replaced.
    I3  all streams are of one length.
    I4  as many log-probs as sampled tokens, finite and at most 0.
    I5  every sampled token is trained once, or listed.
    I6  blocks lie end to end and cover the ids.
    I7  no sample without a trained token, no negative response.
    """
    seen: dict[Turn, bytes] = {}
    for segment in record.segments:
        _check_segment(segment, seen)
    _check_samples(record, seen)


def _check_segment(segment: Segment, seen: dict[Turn, bytes]) -> None:
    tokens, at, sampled = segment.tokens, 0, 0
    for block in segment.blocks:
        assert block.start == at <= block.stop, f"I6: gap before {block}"
        at = block.stop
        if block.turn is None:
            continue
        assert block.logprob == sampled, f"I3: log-probs of {block} are at {sampled}"
        sampled += block.stop - block.start
        ids = tokens.view(block.start, block.stop).tobytes()
        known = seen.get(block.turn, ids)
        short, long = sorted((known, ids), key=len)
        assert long.startswith(short), f"I2: {block} differs between segments"
        assert len(long) <= 4 * block.turn.sampled <= len(short) + 4, f"I2: size of {block}"
        seen[block.turn] = long
    assert at == tokens.size, f"I6: blocks end at {at} of {tokens.size}"
    assert sampled == tokens.sampled, f"I4: {sampled} sampled, {tokens.sampled} log-probs"
    logprobs = tokens.logprob_view(0, sampled)
    assert bool(np.isfinite(logprobs).all()), "I4: log-prob not finite"
    ends = {0, *(block.stop for block in segment.blocks)}
    for mark in segment.marks:
        assert mark.tokens in ends, f"I1: {mark} is no prompt"


def _check_samples(record: Record, turns: dict[Turn, bytes]) -> None:
    result = make_samples(record, None)
    trained = sum(sample.trained_tokens for sample in result.samples)
    listed = sum(drop.tokens for drop in result.dropped)
    total = sum(turn.sampled for turn in turns)
    assert trained + listed == total, f"I5: {trained} trained, {listed} listed, {total} sampled"
    for sample in result.samples:
        assert sample.trained_tokens > 0 and sample.response_length > 0, "I7: empty sample"
        assert len(sample.ids) == sample.prompt_length + len(sample.loss_mask), "I3: lengths"
        assert bool((np.isfinite(sample.logprobs) == (sample.loss_mask == 1)).all()), "I4: mask"
        assert sample.spans[0].start == 0 and sample.spans[-1].stop == len(sample.ids), "I6: spans"

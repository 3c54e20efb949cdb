"""An engine's own record of a call: where its prompt extends or contradicts what is recorded."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tokendelta._core import Tokens, common_prefix
from tokendelta.errors import TokenIdError
from tokendelta.sample import IntArray
from tokendelta.segment import Mark, Segment
from tokendelta.state import Record, SessionState

Kind = Literal["start", "clean", "overlap", "drift", "fork"]


def checked_prompt(ids: Any, record: Record) -> IntArray:
    """A prompt as int32[n]. Raises TokenIdError with the turn and the index."""
    array = np.asarray(ids)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise TokenIdError(
            f"turn {record.turns}: the prompt must be a list of ids, got shape {array.shape} of"
            f" {array.dtype}"
        )
    limit = record.profile.vocab_size or int(np.iinfo(np.int32).max)
    wrong = np.flatnonzero((array < 0) | (array >= limit))
    if len(wrong):
        index = int(wrong[0])
        raise TokenIdError(
            f"turn {record.turns}: prompt id {int(array[index])} at index {index} is not in"
            f" 0..{limit - 1}"
        )
    return array.astype(np.int32)


def place(state: SessionState, prompt: IntArray) -> tuple[Kind, int]:
    """Stand at the prompt, in a segment that shares what agrees with it.

    Returns how the prompt stands to the segment that agrees longest, and how long that is.
    """
    record = state.record
    best, agreed = None, -1
    for segment in reversed(record.segments):
        shared = common_prefix(segment.tokens.view(0, segment.tokens.size), prompt)
        if shared > agreed:
            best, agreed = segment, shared
    kind: Kind = "start" if best is None else _classify(best, agreed, prompt)
    if best is None or agreed < best.marks[0].tokens:
        target = Segment(Tokens(len(prompt) * 5 // 4 + 256), len(record.segments))
        target.append_context(prompt, "prompt", record.turns)
        record.segments.append(target)
    else:
        clean = agreed == best.tokens.size
        target = best if clean else record.branch(best, _whole_blocks(best, agreed))
        if target.tokens.size < len(prompt):
            rest = prompt[target.tokens.size :]
            target.append_context(rest, "environment", record.turns)
    state.enter(target)
    return kind, max(agreed, 0)


def _classify(
    segment: Segment, agreed: int, prompt: IntArray
) -> Literal["clean", "overlap", "drift", "fork"]:
    if agreed == segment.tokens.size:
        return "clean"
    if agreed == len(prompt):
        return "overlap"
    block = next(b for b in segment.blocks if b.start <= agreed < b.stop)
    return "drift" if block.turn is not None else "fork"


def _whole_blocks(segment: Segment, agreed: int) -> Mark:
    """The place behind the last block that lies in the first `agreed` tokens."""
    count = sum(1 for block in segment.blocks if block.stop <= agreed)
    blocks = segment.blocks[:count]
    size = blocks[-1].stop
    sampled = sum(block.stop - block.start for block in blocks if block.turn is not None)
    messages = 0
    for mark in segment.marks:
        if mark.tokens <= size:
            messages = mark.messages
    return Mark(messages, size, sampled, count)

"""Samples to micro-batches without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokendelta._core import fill_positions
from tokendelta.errors import LengthError
from tokendelta.sample import FloatArray, IntArray, MaskArray, Sample


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences laid end to end; n tokens in all, s sequences.

    ids           int32[n]
    position_ids  int32[n], from 0 in each sequence
    cu_seqlens    int32[s + 1], the start of each sequence and the end of the last
    loss_mask     uint8[n], 1 where the token was sampled and is trained; 0 over prompts
    logprobs      float32[n], NaN where loss_mask is 0
    sample_index  int32[s], which of the samples given to `pack` each sequence is

    Streams are token-aligned: index i belongs to ids[i]. The log-prob that a model computes at
    position i - 1 is the one to compare with logprobs[i].
    """

    ids: IntArray
    position_ids: IntArray
    cu_seqlens: IntArray
    loss_mask: MaskArray
    logprobs: FloatArray
    sample_index: IntArray


def pack(samples: Sequence[Sample], max_tokens: int) -> list[MicroBatch]:
    """Fill micro-batches of up to `max_tokens` tokens, first fit decreasing.

    Longer samples come first, ties keep their order. Raises LengthError for a sample longer than
    max_tokens: cut it with `Session.samples(max_len=...)`.
    """
    lengths = [len(sample.ids) for sample in samples]
    for index, length in enumerate(lengths):
        if length > max_tokens:
            raise LengthError(
                f"sample {index} has {length} tokens, more than max_tokens={max_tokens}; cut it"
                " with samples(max_len=...) or raise max_tokens"
            )
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = next((b for b, free in enumerate(room) if free >= lengths[index]), -1)
        if place < 0:
            bins.append([])
            room.append(max_tokens)
        bins[place].append(index)
        room[place] -= lengths[index]
    return [_lay_out(samples, members) for members in bins]


def _lay_out(samples: Sequence[Sample], members: Sequence[int]) -> MicroBatch:
    lengths = np.array([len(samples[index].ids) for index in members], dtype=np.int32)
    cu_seqlens = np.zeros(len(members) + 1, dtype=np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    size = int(cu_seqlens[-1])
    ids = np.empty(size, dtype=np.int32)
    mask = np.zeros(size, dtype=np.uint8)
    logprobs = np.full(size, np.nan, dtype=np.float32)
    positions = np.empty(size, dtype=np.int32)
    fill_positions(positions, lengths)
    for at, index in zip(cu_seqlens[:-1].tolist(), members, strict=True):
        sample = samples[index]
        stop = at + len(sample.ids)
        ids[at:stop] = sample.ids
        mask[at + sample.prompt_length : stop] = sample.loss_mask
        logprobs[at + sample.prompt_length : stop] = sample.logprobs
    return MicroBatch(ids, positions, cu_seqlens, mask, logprobs, np.array(members, dtype=np.int32))


def unpack(batches: Sequence[MicroBatch]) -> list[tuple[IntArray, MaskArray, FloatArray]]:
    """Ids, mask and log-probs of every sequence, in the order of the samples given to `pack`."""
    found: dict[int, tuple[IntArray, MaskArray, FloatArray]] = {}
    for batch in batches:
        bounds = batch.cu_seqlens.tolist()
        for place, index in enumerate(batch.sample_index.tolist()):
            cut = slice(bounds[place], bounds[place + 1])
            found[index] = (batch.ids[cut], batch.loss_mask[cut], batch.logprobs[cut])
    return [found[index] for index in sorted(found)]

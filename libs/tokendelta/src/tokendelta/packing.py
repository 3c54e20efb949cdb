"""Samples to micro-batches without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from tokendelta._core import pack_streams
from tokendelta.balancing import first_fit_decreasing, karmarkar_karp, split_to_multiple
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
    rank          the data-parallel rank that the batch is meant for

    Streams are token-aligned: index i belongs to ids[i]. The log-prob that a model computes at
    position i - 1 is the one to compare with logprobs[i].
    """

    ids: IntArray
    position_ids: IntArray
    cu_seqlens: IntArray
    loss_mask: MaskArray
    logprobs: FloatArray
    sample_index: IntArray
    rank: int = 0


def pack(
    samples: Sequence[Sample],
    max_tokens: int,
    *,
    ranks: int = 1,
    crossover: int | None = None,
) -> list[MicroBatch]:
    """Fill micro-batches of up to `max_tokens` tokens and spread them over ranks.

    Batches are filled first fit decreasing. With more than one rank, batches are split until their
    number is a multiple of `ranks`, as far as there are sequences, and Karmarkar-Karp gives every
    rank as many of them with near equal cost; the result is ordered by rank. The arrays of all
    batches are views of common memory.

    crossover  the sequence length at which attention costs as much as the rest of the model. The
               cost of a sequence of n tokens is n + n * n / crossover; without it, n.

    Raises LengthError for a sample longer than max_tokens, ValueError for ranks below 1.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}, it must be at least 1")
    if crossover is not None and crossover < 1:
        raise ValueError(f"crossover is {crossover}, it must be at least 1")
    lengths = [len(sample.ids) for sample in samples]
    for index, length in enumerate(lengths):
        if length > max_tokens:
            raise LengthError(
                f"sample {index} has {length} tokens, more than max_tokens={max_tokens}; cut it"
                " with samples(max_len=...) or raise max_tokens"
            )
    bins = first_fit_decreasing(lengths, max_tokens)
    if ranks == 1:
        return _lay_out(samples, bins, [0] * len(bins))
    bins = split_to_multiple(bins, lengths, ranks)
    costs = [sum(_cost(lengths[i], crossover) for i in members) for members in bins]
    groups = karmarkar_karp(costs, ranks)
    order = [place for group in groups for place in group]
    rank_of = [rank for rank, group in enumerate(groups) for _ in group]
    return _lay_out(samples, [bins[place] for place in order], rank_of)


def _cost(length: int, crossover: int | None) -> float:
    return length + (length * length / crossover if crossover else 0.0)


def _lay_out(
    samples: Sequence[Sample], bins: Sequence[Sequence[int]], ranks: Sequence[int]
) -> list[MicroBatch]:
    """Micro-batches as views of four streams that are filled at once."""
    chosen = [samples[index] for members in bins for index in members]
    size = sum(len(sample.ids) for sample in chosen)
    ids, positions = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)
    mask, logprobs = np.empty(size, dtype=np.uint8), np.empty(size, dtype=np.float32)
    pack_streams(ids, positions, mask, logprobs, [(s.ids, s.loss_mask, s.logprobs) for s in chosen])
    batches, at = [], 0
    for members, rank in zip(bins, ranks, strict=True):
        ends = list(accumulate((len(samples[index].ids) for index in members), initial=0))
        cut = slice(at, at + ends[-1])
        at = cut.stop
        batches.append(
            MicroBatch(
                ids[cut],
                positions[cut],
                np.array(ends, dtype=np.int32),
                mask[cut],
                logprobs[cut],
                np.array(members, dtype=np.int32),
                rank,
            )
        )
    return batches


def unpack(batches: Sequence[MicroBatch]) -> list[tuple[IntArray, MaskArray, FloatArray]]:
    """Ids, mask and log-probs of every sequence, in the order of the samples given to `pack`."""
    found: dict[int, tuple[IntArray, MaskArray, FloatArray]] = {}
    for batch in batches:
        bounds = batch.cu_seqlens.tolist()
        for place, index in enumerate(batch.sample_index.tolist()):
            cut = slice(bounds[place], bounds[place + 1])
            found[index] = (batch.ids[cut], batch.loss_mask[cut], batch.logprobs[cut])
    return [found[index] for index in sorted(found)]

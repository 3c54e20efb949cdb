"""One episode opened: its tokens in arrays, of which the page asks for what it shows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from turnwise.report.viewer import Block, outline
from turnwise.run.authors import Run
from turnwise.run.traces import SegmentTrace, Trace

MAX_WINDOW = 4096
"""Tokens of one answer."""


@dataclass(frozen=True)
class Segment:
    """A `SegmentTrace` of n tokens in about 20 bytes a token.

    Attributes:
        ids: int32[n].
        loss_mask: uint8[n - prompt_length].
        logprobs: float32[n - prompt_length], NaN where the token is not trained.
        text: All texts joined; that of token i ends at character `ends[i]`.
        ends: int64[n].
        blocks: The outline, with the pieces of each block.
    """

    ids: NDArray[np.int32]
    prompt_length: int
    loss_mask: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    text: str
    ends: NDArray[np.int64]
    spans: Sequence[tuple[str, int, int, int]]
    authors: Sequence[Run]
    weight: float
    blocks: Sequence[Block]

    @classmethod
    def of(cls, trace: SegmentTrace) -> Segment:
        lengths = np.fromiter(map(len, trace.texts), np.int64, len(trace.texts))
        return cls(
            ids=np.array(trace.ids, dtype=np.int32),
            prompt_length=trace.prompt_length,
            loss_mask=np.array(trace.loss_mask, dtype=np.uint8),
            logprobs=np.array(trace.logprobs, dtype=np.float32),
            text="".join(trace.texts),
            ends=np.cumsum(lengths),
            spans=trace.spans,
            authors=trace.authors,
            weight=trace.weight,
            blocks=outline(trace),
        )

    def window(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Tokens [start, stop) as chunks that share author and mask, `MAX_WINDOW` at most."""
        start = max(0, start)
        stop = min(stop, len(self.ids), start + MAX_WINDOW)
        chunks = []
        for author, first, last in self._pieces[self._place(start) :]:
            if first >= stop:
                break
            begin, end = max(first, start), min(last, stop)
            if begin < end:
                chunks.append(self._chunk(author, begin, end))
        return chunks

    @cached_property
    def _pieces(self) -> list[Run]:
        return [piece for block in self.blocks for piece in block.pieces]

    def _place(self, start: int) -> int:
        return bisect_right(self._pieces, start, key=lambda piece: piece[2])

    def _chunk(self, author: str, start: int, stop: int) -> dict[str, Any]:
        ends = [int(self.ends[start - 1]) if start else 0, *self.ends[start:stop].tolist()]
        shift = self.prompt_length
        trained = start >= shift and bool(self.loss_mask[start - shift])
        chunk: dict[str, Any] = {
            "author": author,
            "trained": trained,
            "ids": self.ids[start:stop].tolist(),
            "texts": [self.text[a:b] for a, b in zip(ends, ends[1:], strict=False)],
        }
        if trained:
            chunk["logprobs"] = self.logprobs[start - shift : stop - shift].tolist()
        return chunk


@dataclass(frozen=True)
class OpenEpisode:
    """An episode in memory; `trace` is without its segments, which are in `segments`."""

    trace: Trace
    segments: Sequence[Segment]

    @property
    def tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments)

    @property
    def trained(self) -> int:
        return sum(int(segment.loss_mask.sum()) for segment in self.segments)


_decode = msgspec.json.Decoder(Trace).decode


def open_episode(line: bytes) -> OpenEpisode:
    """Reads a line of episodes.jsonl.

    Raises:
        ValueError: it is no trace, or its parts do not fit each other.
    """
    trace = _decode(line)
    for number, one in enumerate(trace.segments):
        sizes = (len(one.texts), one.prompt_length + len(one.loss_mask))
        if {*sizes, one.prompt_length + len(one.logprobs)} != {len(one.ids)}:
            raise ValueError(
                f"segments[{number}]: {len(one.ids)} ids, {one.prompt_length} of them prompt, with"
                f" {len(one.texts)} texts, {len(one.loss_mask)} mask and {len(one.logprobs)}"
                " log-probs"
            )
        for name, start, stop in (*one.authors, *(span[1:] for span in one.spans)):
            if not 0 <= start <= stop <= len(one.ids):
                raise ValueError(
                    f"segments[{number}]: {name!r} from token {start} to {stop}, of {len(one.ids)}"
                )
    segments = [Segment.of(one) for one in trace.segments]
    return OpenEpisode(msgspec.structs.replace(trace, segments=[]), segments)


def common_tokens(episodes: Sequence[OpenEpisode]) -> int:
    """How many tokens from the start all episodes share, by the ids of their first segments."""
    if not episodes or not all(one.segments for one in episodes):
        return 0
    first = episodes[0].segments[0].ids
    common = len(first)
    for other in episodes[1:]:
        ids = other.segments[0].ids
        size = min(common, len(ids))
        differing = np.flatnonzero(first[:size] != ids[:size])
        common = int(differing[0]) if differing.size else size
    return common

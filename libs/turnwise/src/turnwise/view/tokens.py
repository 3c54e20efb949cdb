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
from turnwise.run.traces import Trace

MAX_WINDOW = 4096
"""Tokens of one answer."""


class _Line(Trace, frozen=True, kw_only=True):
    """A line of episodes.jsonl whose long lists are not read yet."""

    segments: list[_RawSegment]  # type: ignore[assignment]


class _RawSegment(msgspec.Struct, frozen=True, kw_only=True):
    """`SegmentTrace`, its lists as they stand in the file: one at a time becomes an array."""

    ids: msgspec.Raw
    texts: msgspec.Raw
    prompt_length: int
    loss_mask: msgspec.Raw
    logprobs: msgspec.Raw
    spans: list[tuple[str, int, int, int]]
    authors: list[Run]
    weight: float = 1.0
    advantage: float | None = None
    trainer_logprobs: msgspec.Raw = msgspec.Raw(b"[]")
    ratios: msgspec.Raw = msgspec.Raw(b"[]")
    clipped: list[int] = []
    gap: float | None = None


@dataclass(frozen=True)
class Segment:
    """A `SegmentTrace` of n tokens in about 20 bytes a token, m of them after the prompt.

    Attributes:
        ids: int32[n].
        loss_mask: uint8[m].
        logprobs: float32[m], NaN where the token is not trained.
        text: All texts joined; that of token i ends at character `ends[i]`.
        ends: int64[n].
        trainer_logprobs, ratios: float32[m] like `logprobs`; float32[0] where not known.
        clipped: Places of tokens whose clip was active.
        gap: The largest difference between `trainer_logprobs` and `logprobs`, before the file
            rounded them.
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
    advantage: float | None
    trainer_logprobs: NDArray[np.float32]
    ratios: NDArray[np.float32]
    clipped: frozenset[int]
    gap: float | None

    @classmethod
    def read(cls, raw: _RawSegment, number: int) -> Segment:
        """
        Args:
            number: Of the segment, for the error.

        Raises:
            ValueError: its parts do not fit each other.
        """
        texts = _texts(raw.texts)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        segment = cls(
            ids=_whole(raw.ids, np.int32),
            prompt_length=raw.prompt_length,
            loss_mask=_whole(raw.loss_mask, np.uint8),
            logprobs=np.array(_floats(raw.logprobs), dtype=np.float32),
            text="".join(texts),
            ends=np.cumsum(lengths),
            spans=raw.spans,
            authors=raw.authors,
            weight=raw.weight,
            advantage=raw.advantage,
            trainer_logprobs=np.array(_floats(raw.trainer_logprobs), dtype=np.float32),
            ratios=np.array(_floats(raw.ratios), dtype=np.float32),
            clipped=frozenset(raw.clipped),
            gap=raw.gap,
        )
        segment._check(number)
        return segment

    def _check(self, number: int) -> None:
        count, prompt = len(self.ids), self.prompt_length
        behind = {prompt + len(self.loss_mask), prompt + len(self.logprobs)}
        behind |= {prompt + len(one) for one in (self.trainer_logprobs, self.ratios) if len(one)}
        if prompt < 0 or {len(self.ends), *behind} != {count}:
            raise ValueError(
                f"segments[{number}]: {count} ids, {prompt} of them prompt, with"
                f" {len(self.ends)} texts, {len(self.loss_mask)} mask and {len(self.logprobs)}"
                f" log-probs, {len(self.trainer_logprobs)} of the trainer, {len(self.ratios)}"
                " ratios"
            )
        for name, start, stop in (*self.authors, *(span[1:] for span in self.spans)):
            if not 0 <= start <= stop <= count:
                raise ValueError(
                    f"segments[{number}]: {name!r} from token {start} to {stop}, of {count}"
                )

    @cached_property
    def blocks(self) -> Sequence[Block]:
        """The outline, with the pieces of each block."""
        return outline(self)

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
            behind = slice(start - shift, stop - shift)
            chunk["logprobs"] = self.logprobs[behind].tolist()
            if len(self.trainer_logprobs):
                chunk["trainer"] = self.trainer_logprobs[behind].tolist()
            if len(self.ratios):
                chunk["ratios"] = self.ratios[behind].tolist()
                chunk["clipped"] = [at - start for at in range(start, stop) if at in self.clipped]
            if self.advantage is not None:
                chunk["advantage"] = self.advantage
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


_decode = msgspec.json.Decoder(_Line).decode
_texts = msgspec.json.Decoder(list[str]).decode
_numbers = msgspec.json.Decoder(list[int]).decode
_floats = msgspec.json.Decoder(list[float | None]).decode


def _whole(raw: msgspec.Raw, dtype: type[Any]) -> NDArray[Any]:
    """Raises ValueError for a number that the type does not hold."""
    numbers = _numbers(raw)
    try:
        return np.fromiter(numbers, dtype, len(numbers))
    except OverflowError as error:
        raise ValueError(str(error)) from None


def open_episode(line: bytes) -> OpenEpisode:
    """Reads a line of episodes.jsonl.

    Raises:
        ValueError: it is no trace, or its parts do not fit each other.
    """
    trace = _decode(line)
    segments = [Segment.read(raw, number) for number, raw in enumerate(trace.segments)]
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

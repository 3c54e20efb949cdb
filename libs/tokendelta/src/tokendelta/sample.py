"""What a session gives back: samples, their spans, and what was left out and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
MaskArray = NDArray[np.uint8]
FloatArray = NDArray[np.float32]

SpanKind = Literal[
    "prompt",
    "reasoning",
    "content",
    "tool_call",
    "stop",
    "separator",
    "environment",
    "header",
]


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `ids[start:stop]` of a sample that belong together.

    `turn` counts the sampled turns of the session from 0; the prompt of turn k has `turn == k`.
    `trained` is the mask of the whole span: a span never mixes trained and context tokens.
    """

    kind: SpanKind
    turn: int
    start: int
    stop: int
    trained: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """One token sequence to train on.

    ids            int32[n], the prompt and then the response region.
    prompt_length  tokens before the response region, which starts at the first sampled turn.
    loss_mask      uint8[n - prompt_length], 1 where the token was sampled and is trained here.
    logprobs       float32[n - prompt_length], the engine's log-prob (natural logarithm) of the
                   token at the same place; NaN where the token is not trained.
    spans          all of ids in order, without gaps, with places counted from the start of ids.
    weight         the part of the episode's trained tokens that this sample holds. The weights of
                   all samples of a session sum to 1.
    segment        number of the segment of the session that this sample was made from.
    side           further streams, each with one row for each token of ids.

    All arrays are read-only. Streams are token-aligned: index i says something about token i, not
    about the prediction made at i.
    """

    ids: IntArray
    prompt_length: int
    loss_mask: MaskArray
    logprobs: FloatArray
    spans: tuple[Span, ...]
    weight: float
    segment: int = 0
    side: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def response_length(self) -> int:
        """Tokens of the response region, trained or not."""
        return len(self.ids) - self.prompt_length

    @property
    def trained_tokens(self) -> int:
        """Tokens with mask 1: the denominator of a per-token loss."""
        return int(self.loss_mask.sum(dtype=np.int64))


DropReason = Literal[
    "over max_len",
    "no trained token left",
    "trained in another segment",
    "header sampled as stop token was replaced",
    "rolled back",
]


@dataclass(frozen=True, slots=True)
class Drop:
    """Sampled tokens that no sample trains.

    `turn` is the sampled turn, `tokens` how many of its tokens are left out.
    """

    turn: int
    segment: int
    tokens: int
    reason: DropReason


@dataclass(frozen=True, slots=True)
class SampleSet:
    """The samples of one session, and every sampled token that is in none of them."""

    samples: tuple[Sample, ...]
    dropped: tuple[Drop, ...]


@dataclass(frozen=True, slots=True)
class Overflow:
    """The answer to an append that would exceed `max_tokens`. Nothing was appended.

    Counts are in tokens: `needed` for this append, `available` before it, `limit` in all.
    """

    needed: int
    available: int
    limit: int

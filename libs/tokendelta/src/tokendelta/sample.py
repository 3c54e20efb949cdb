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
    prompt_length  tokens before the response region, which starts at the first trained token.
    loss_mask      uint8[n - prompt_length], 1 where the token was sampled and is trained here.
    logprobs       float32[n - prompt_length], the engine's log-prob (natural logarithm) of the
                   token at the same place; NaN where the token is not trained.
    spans          all of ids in order, without gaps, with places counted from the start of ids.
    weight         the part of the episode's trained tokens that this sample holds. The weights of
                   all samples of a session sum to 1.
    segment        number of the segment of the session that this sample was made from.
    finish         how its last turn ended: stop, length or abort.
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
    finish: str = "stop"
    side: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def response_length(self) -> int:
        """Tokens of the response region, trained or not."""
        return len(self.ids) - self.prompt_length

    @property
    def trained_tokens(self) -> int:
        """Tokens with mask 1: the denominator of a per-token loss."""
        return int(self.loss_mask.sum(dtype=np.int64))


DropReason = Literal["over max_len", "header replaced", "undelivered", "abandoned", "constrained"]


@dataclass(frozen=True, slots=True)
class Drop:
    """Sampled tokens that no sample trains.

    `turn` is the sampled turn, `tokens` how many of its tokens are left out. Reasons:

    over max_len     the sample was cut before the span that holds them.
    header replaced  a stop token that is the header of a message, of another kind than came.
    undelivered      no program has seen the turn (`Tree`); `detail` is what its caller says.
    abandoned        nothing was sampled for the turn (`Tree`), so `tokens` is 0; `detail` says why.
    constrained      sampled from another distribution than the policy's own (`Tree`).
    """

    turn: int
    segment: int
    tokens: int
    reason: DropReason
    detail: str = ""


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


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A place where the template shows history otherwise than it was sampled or sent.

    turn     the sampled turn whose prompt is affected.
    where    what changes first: history, header, turn, or stop (the ending of the last turn); or
             message: the template looks into the turn, and no `message` was given with it.
    certain  False where the profile only says that it may: the record was kept unchecked.
    """

    turn: int
    where: str
    certain: bool


@dataclass(frozen=True, slots=True)
class Drift:
    """The first place where the record and a full render of the same messages differ.

    turn      the turn whose prompt was compared.
    at        index in the ids of the segment.
    kind      what the record holds there: prompt, sampled or environment.
    recorded  id in the record, or -1 behind its end.
    rendered  id in the render, or -1 behind its end.
    """

    turn: int
    at: int
    kind: str
    recorded: int
    rendered: int


@dataclass(frozen=True, slots=True)
class Ingest:
    """How the prompt of an engine's call stands to what was recorded.

    kind     clean, overlap, drift or fork; `start` for the first call of a session.
    agreed   tokens that the prompt shares with the segment it was compared with.
    segment  number of the segment that now holds the call.
    turn     number of the sampled turn.
    """

    kind: Literal["start", "clean", "overlap", "drift", "fork"]
    agreed: int
    segment: int
    turn: int

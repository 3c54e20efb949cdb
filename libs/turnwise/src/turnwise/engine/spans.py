"""Attention of a prefill: new tokens of several rows, each over what its row holds.

A row is a call of its own: on a CPU that is the least work. On a GPU a call costs more than what a
short span computes, and a batch of conversations has one for each row and layer; there all short
spans are one call over a copy of their rows' keys and values, padded to the longest of them.

Shapes: N tokens laid end to end, m short spans of at most L tokens, Q query heads, K key-value
heads, G = Q / K, D head size, T context, U used tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SHORT = 64
"""Tokens of a span that goes with others."""
ALIGNED = 8
"""Width of a mask that every attention kernel takes is a multiple of it."""


@dataclass(frozen=True, slots=True)
class Span:
    """`length` tokens of a row from position `start` on."""

    row: int
    start: int
    length: int

    @property
    def used(self) -> int:
        """Positions of the row with them."""
        return self.start + self.length

    def last(self) -> Span:
        """Its last token."""
        return Span(self.row, self.used - 1, 1)


@dataclass(frozen=True, slots=True)
class _Together:
    """Short spans.

    Attributes:
        rows: int64[m].
        places: int64[m, L], where their tokens lie in N.
        visible: bool[m, 1, L, U], which positions each may see.
        source: Of m * L, those that are no padding.
        target: Where in N their results go.
    """

    rows: Tensor
    places: Tensor
    visible: Tensor
    source: Tensor
    target: Tensor


class Spans:
    """The spans of one pass.

    Args:
        spans: In the order of their tokens.
        context: Positions of a row.
        device: Of the cache.
        together: Whether short ones are computed in one call; as said above where None.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        context: int,
        device: torch.device,
        together: bool | None = None,
    ) -> None:
        if together is None:
            together = device.type != "cpu"
        self._spans = spans
        self._begins = [0]
        for span in spans:
            self._begins.append(self._begins[-1] + span.length)
        short = [place for place, span in enumerate(spans) if span.length <= SHORT]
        short = short if together and len(short) > 1 else []
        self._alone = sorted(set(range(len(spans))) - set(short))
        self._masks = {place: _mask(spans[place], device) for place in self._alone}
        self._together = self._pad(short, context, device) if short else None

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of queries [N, Q, D] over a layer's keys and values [rows, K, T, D]."""
        made = torch.empty_like(q)
        if self._together is not None:
            self._attend_together(self._together, q, keys, values, made)
        for place in self._alone:
            span, mask = self._spans[place], self._masks[place]
            own = slice(self._begins[place], self._begins[place + 1])
            heads = F.scaled_dot_product_attention(
                q[own].transpose(0, 1)[None],
                keys[span.row, :, : span.used][None],
                values[span.row, :, : span.used][None],
                attn_mask=mask,
                is_causal=mask is None and span.length > 1,
                enable_gqa=q.shape[1] != keys.shape[1],
            )
            made[own] = heads[0].transpose(0, 1)
        return made

    def _attend_together(
        self, all_: _Together, q: Tensor, keys: Tensor, values: Tensor, made: Tensor
    ) -> None:
        used = all_.visible.shape[-1]
        m, length = all_.places.shape
        k, d = keys.shape[1], keys.shape[3]
        group = q.shape[1] // k
        # [m, L, K, G, D] -> [m, K, L * G, D]: the queries of a key head are a row of the call.
        own = q[all_.places].view(m, length, k, group, d).transpose(1, 2).reshape(m, k, -1, d)
        heads = F.scaled_dot_product_attention(
            own,
            keys[:, :, :used].index_select(0, all_.rows),
            values[:, :, :used].index_select(0, all_.rows),
            attn_mask=all_.visible.repeat_interleave(group, dim=2),
        )
        heads = heads.view(m, k, length, group, d).transpose(1, 2).reshape(m * length, -1, d)
        made.index_copy_(0, all_.target, heads.index_select(0, all_.source))

    def _pad(self, short: Sequence[int], context: int, device: torch.device) -> _Together:
        spans = [self._spans[place] for place in short]
        width = max(span.length for span in spans)
        used = min(-(-max(span.used for span in spans) // ALIGNED) * ALIGNED, context)
        lengths = torch.tensor([span.length for span in spans])[:, None]
        starts = torch.tensor([span.start for span in spans])[:, None]
        begins = torch.tensor([self._begins[place] for place in short])[:, None]
        at = torch.arange(width)
        valid = at < lengths
        # What is padding computes the span's last token again.
        inside = torch.minimum(at.expand_as(valid), lengths - 1)
        visible = torch.arange(used) <= (starts + inside)[..., None]
        return _Together(
            rows=torch.tensor([span.row for span in spans], device=device),
            places=(begins + inside).to(device),
            visible=visible[:, None].to(device),
            source=valid.flatten().nonzero()[:, 0].to(device),
            target=(begins + inside)[valid].to(device),
        )


def _mask(span: Span, device: torch.device) -> Tensor | None:
    if span.length == 1 or span.start == 0:
        return None
    visible = torch.ones((span.length, span.used), device=device, dtype=torch.bool)
    return visible.tril_(span.start)

"""From character spans to tokens, and from special tokens to markers.

A token belongs to a span where the two share at least one character: the token on a
boundary is inside, whole. A token without characters (a special token that was decoded to
nothing) is inside where it stands strictly between the ends of the span.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from toolparse.result.model import Parsed, Source

Span = tuple[int, int]
WHAT: Final = ("block", "name", "arguments", "values", "markup", "reasoning", "content")


class Tokens:
    """The tokens of a text: ids, character offsets (as a fast tokenizer gives them), and the
    ids that are special. A marker typed as ordinary tokens is then content."""

    __slots__ = ("ids", "offsets", "special_ids")

    def __init__(
        self, ids: Sequence[int], offsets: Sequence[Span], special_ids: Collection[int]
    ) -> None:
        if len(ids) != len(offsets):
            raise ValueError(f"{len(ids)} token ids, but {len(offsets)} offsets")
        self.ids = ids
        self.offsets = offsets
        self.special_ids = frozenset(special_ids)

    def marker_bytes(self, source: Source) -> frozenset[int]:
        """The byte offsets at which a special token begins."""
        starts = sorted(
            {o[0] for i, o in zip(self.ids, self.offsets, strict=True) if i in self.special_ids}
        )
        data = source.data
        if data.isascii():
            return frozenset(starts)
        found: set[int] = set()
        char, byte = 0, 0
        for start in starts:
            # One step per character, over all starts together.
            while char < start and byte < len(data):
                byte += 1
                while byte < len(data) and data[byte] & 0xC0 == 0x80:
                    byte += 1
                char += 1
            if char == start:
                found.add(byte)
        return frozenset(found)


def spans_of(parsed: Parsed, what: Iterable[str]) -> list[Span]:
    """The character spans of the executable calls, or of reasoning and content."""
    found: list[Span] = []
    for kind in what:
        if kind not in WHAT:
            raise ValueError(f"unknown part {kind!r}: want some of {', '.join(WHAT)}")
        if kind == "reasoning":
            found += parsed.reasoning_spans
        elif kind == "content":
            found += parsed.content_spans
        for call in parsed.calls if kind not in ("reasoning", "content") else ():
            values = sorted((call.value_spans or {}).values())
            if kind == "block":
                found.append(call.span)
            elif kind == "name":
                found += [call.name_span] if call.name_span else []
            elif kind == "arguments":
                found += [call.arguments_span] if call.arguments_span else []
            elif kind == "values":
                found += values
            else:
                inner = values + ([call.name_span] if call.name_span else [])
                found += outside(call.span, inner)
    return sorted(found)


def outside(span: Span, inner: list[Span]) -> list[Span]:
    """What of `span` no inner span covers."""
    pieces, pos = [], span[0]
    for start, end in sorted(inner):
        if start > pos:
            pieces.append((pos, start))
        pos = max(pos, end)
    if pos < span[1]:
        pieces.append((pos, span[1]))
    return pieces


def token_mask(
    parsed: Parsed, offsets: Sequence[Span], what: Iterable[str] = ("block",)
) -> list[bool]:
    """One bool per token: whether it lies in one of the parts named by `what`.

    offsets: half-open character spans of the tokens in the parsed text, in order; what:
    some of "block", "name", "arguments", "values", "markup", "reasoning", "content".
    """
    spans = spans_of(parsed, what)
    mask, first = [], 0
    for start, end in offsets:
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        inside = False
        for i in range(first, len(spans)):
            left, right = spans[i]
            if left >= max(end, start + 1) or inside:
                break
            inside = inside or (
                left < end and start < right if end > start else left < start < right
            )
        mask.append(inside)
    return mask

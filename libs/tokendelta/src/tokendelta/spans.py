"""Blocks of a segment split into the spans that people ask about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokendelta._core import Tokens
from tokendelta.sample import Span, SpanKind
from tokendelta.segment import Block, Turn

if TYPE_CHECKING:
    from tokendelta.profile import Profile


def spans_of(
    profile: Profile, tokens: Tokens, blocks: Sequence[Block], own: set[Turn]
) -> tuple[Span, ...]:
    """Spans that cover the blocks in order without gaps. Empty spans are left out."""
    result: list[Span] = []
    for block in blocks:
        trained = block.turn in own
        if block.turn is not None:
            pieces = _sampled(profile, tokens, block)
        elif block.kind == "prompt":
            pieces = _ending_in_header(profile, tokens, block.start, block.stop, "prompt")
        else:
            pieces = _environment(profile, tokens, block)
        start = block.start
        for kind, stop in pieces:
            if stop > start:
                result.append(Span(kind, block.number, start, stop, trained))
                start = stop
    return tuple(result)


def _sampled(profile: Profile, tokens: Tokens, block: Block) -> list[tuple[SpanKind, int]]:
    """Reasoning up to its closing marker, content, tool calls from their first marker, stop."""
    end = block.stop
    if end > block.start and tokens[end - 1] in profile.stop_ids:
        end -= 1
    start, pieces = block.start, list[tuple[SpanKind, int]]()
    if profile.reasoning_close_id >= 0:
        at = tokens.find(profile.reasoning_close_id, start, end)
        if at >= 0:
            start = at + 1
            pieces.append(("reasoning", start))
    if profile.tool_call_id >= 0:
        at = tokens.find(profile.tool_call_id, start, end)
        if at >= 0:
            pieces += [("content", at), ("tool_call", end)]
    return [*pieces, ("content", end), ("stop", block.stop)]


def _environment(profile: Profile, tokens: Tokens, block: Block) -> list[tuple[SpanKind, int]]:
    """A stop token that was synthesised, the separator, the messages, the generation prompt."""
    start, stop = block.start, block.stop
    pieces: list[tuple[SpanKind, int]] = []
    follows_stop = start > 0 and tokens[start - 1] in profile.stop_ids
    if not follows_stop and profile.findings.stop_style != "header":
        at = start
        while at < stop and tokens[at] not in profile.specials.control:
            at += 1
        if at < stop and tokens[at] in profile.stop_ids:
            start = at + 1
            pieces.append(("stop", start))
    at = start
    while at < stop and tokens[at] not in profile.specials.control:
        at += 1
    if at < stop:
        pieces.append(("separator", at))
    return pieces + _ending_in_header(profile, tokens, start, stop, "environment")


def _ending_in_header(
    profile: Profile, tokens: Tokens, start: int, stop: int, kind: SpanKind
) -> list[tuple[SpanKind, int]]:
    header = profile.header_ids
    at = stop - len(header)
    if header and at >= start and tokens.view(at, stop).tolist() == header:
        return [(kind, at), ("header", stop)]
    return [(kind, stop)]

"""Who wrote each token: the part of a trace that a template's spans alone don't tell.

`tokendelta` knows what was sampled and what came from outside; a prompt and an environment span
hold several messages with markup around them. The messages are found in the text of the span, in
order, and what lies between them is the template's: markup, headers, the list of tools.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import tokendelta

Author = Literal["system", "user", "tool", "template", "policy"]
Run = tuple[Author, int, int]
"""Tokens [start, stop) of a segment by one author."""

ROLES: Mapping[str, Author] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "tool": "tool",
    "function": "tool",
    "assistant": "policy",
}
SAMPLED = ("reasoning", "content", "tool_call")


def author_runs(
    segment: int,
    sample: tokendelta.Sample,
    texts: Sequence[str],
    transcript: Sequence[Mapping[str, Any]],
) -> list[Run]:
    """Runs that cover all tokens of the sample in order, neighbours by different authors.

    A message with `segment` and `span` (as episodes of this workspace write them) is looked for
    there alone; one without, in every prompt and environment span from where the one before ended.
    A token that holds text of a message and of the template counts as the message's.

    Args:
        segment: Number of the sample in its episode.
        texts: One for each token of the sample (`token_texts`).
        transcript: OpenAI-style messages of the episode in order.
    """
    runs: list[Run] = []
    after = 0
    for span in sample.spans:
        if span.kind in SAMPLED or span.trained:
            pieces: list[Run] = [("policy", span.start, span.stop)]
        elif span.kind in ("prompt", "environment"):
            candidates = list(_candidates(segment, span, transcript, after))
            pieces, last = _split(span, texts, candidates)
            after = max(after, last + 1)
        else:
            pieces = [("template", span.start, span.stop)]
        for author, start, stop in pieces:
            if runs and runs[-1][0] == author:
                start = runs.pop()[1]
            runs.append((author, start, stop))
    return runs


def _candidates(
    segment: int, span: tokendelta.Span, transcript: Sequence[Mapping[str, Any]], after: int
) -> Iterator[tuple[int, Author, str]]:
    """Messages that may stand in the span: place in the transcript, author, text."""
    for place, message in enumerate(transcript):
        author = ROLES.get(message.get("role", ""))
        content = message.get("content")
        text = content.strip() if isinstance(content, str) else ""
        if author is None or not text:
            continue
        if "span" in message:
            where = message["span"]
            if where is not None and (
                message.get("segment") != segment
                or not where[0] <= span.start
                or not span.stop <= where[1]
            ):
                continue
        elif place < after:
            continue
        yield place, author, text


def _split(
    span: tokendelta.Span, texts: Sequence[str], candidates: Sequence[tuple[int, Author, str]]
) -> tuple[list[Run], int]:
    """The span by author, and the place of the last message that was found in it, or -1."""
    ends = list(accumulate(len(text) for text in texts[span.start : span.stop]))
    whole = "".join(texts[span.start : span.stop])
    pieces: list[Run] = []
    at, token, last = 0, span.start, -1
    for place, author, text in candidates:
        found = whole.find(text, at)
        if found < 0:
            continue
        at, last = found + len(text), place
        start = max(token, span.start + bisect_right(ends, found))
        stop = span.start + bisect_left(ends, at) + 1
        if start > token:
            pieces.append(("template", token, start))
        if stop > start:
            pieces.append((author, start, stop))
            token = stop
    if token < span.stop:
        pieces.append(("template", token, span.stop))
    return pieces, last

"""Traces as the data that the page's viewer shows: conversations made of coloured tokens.

A conversation is a list of blocks, one for each stretch by one author, with the template's markup
around it. A block is a list of chunks of tokens that share author and mask. What is too long is
left out of the middle of a chunk, and the chunk says how much.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from markupsafe import Markup

from turnwise.report.plots import script_json
from turnwise.run.authors import Run
from turnwise.run.traces import SegmentTrace, Trace

MAX_TOKENS = 120_000
"""Tokens in a report; an episode that would exceed it is shown without its tokens."""
HEAD, TAIL = 1500, 300
"""Tokens kept at both ends of a chunk."""
MAX_TEXT = 20_000
"""Characters kept of a message or of an episode's facts."""

NAMES = {
    "system": "System",
    "user": "User",
    "tool": "Tool",
    "template": "Template",
    "policy": "Policy",
}
Json = dict[str, Any]


def episodes_json(traces: Sequence[Trace]) -> Markup:
    """All episodes in order of their steps, as JSON that can stand inside of a script element.

    Args:
        traces: The most telling first: they get their tokens before the others.
    """
    budget = MAX_TOKENS
    shown: list[tuple[tuple[int, bool], Json]] = []
    for trace in traces:
        size = sum(_size(segment) for segment in trace.segments)
        tokens = size <= budget
        budget -= size if tokens else 0
        shown.append(((trace.step, trace.kind == "eval"), _episode(trace, tokens)))
    shown.sort(key=lambda pair: pair[0])
    episodes = [episode for _, episode in shown]
    return script_json(episodes)


def _episode(trace: Trace, tokens: bool) -> Json:
    segments = [_blocks(segment) for segment in trace.segments] if tokens else []
    if not segments:
        segments = [messages(trace)]
    reasons = trace.why.replace("+", ", ")
    score = "no score" if trace.score is None else f"score {trace.score:g}"
    when = f"Training step {trace.step}"
    if trace.kind == "eval":
        when = f"Evaluation after step {trace.step}"
    count = sum(len(segment.ids) for segment in trace.segments)
    note = ""
    if trace.segments and not tokens:
        note = f"Its {count} tokens are left out of this page, which holds {MAX_TOKENS} at most."
    return {
        "when": when,
        "title": f"{reasons}: {trace.task_id}, {score}, {trace.ending}",
        "note": note,
        "facts": facts(trace, count),
        "more": _cut(json.dumps(trace.info, ensure_ascii=False, indent=1)),
        "segments": segments,
    }


def facts(trace: Trace, count: int) -> list[tuple[str, str]]:
    """What is said of an episode of `count` tokens, by name; 0 where no tokens are known."""
    trained = sum(sum(segment.loss_mask) for segment in trace.segments)
    told = [
        ("task", trace.task_id),
        ("rollout", trace.rollout_id),
        ("score", "none" if trace.score is None else f"{trace.score:g}"),
        ("ending", trace.ending),
        ("tokens", f"{count}, {trained} of them trained" if count else "not known"),
        ("time", f"{trace.wall_s:.2f} s"),
    ]
    if trace.error:
        told.append(("error", _cut(trace.error)))
    return told + [
        (name.replace("_", " "), f"{value:.4g}")
        for name, value in trace.metrics.items()
        if value is not None
    ]


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch by one author, with the markup around it.

    Attributes:
        name: The author for people.
        trained: Whether the author's tokens are.
        pieces: `(author, start, stop)` of its tokens in order; within one the mask is the same.
    """

    author: str
    name: str
    trained: bool
    pieces: list[Run]


class Tokens(Protocol):
    """What an outline needs of a segment: a `SegmentTrace`, or one with arrays."""

    @property
    def ids(self) -> Any: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def loss_mask(self) -> Any: ...
    @property
    def spans(self) -> Sequence[tuple[str, int, int, int]]: ...
    @property
    def authors(self) -> Sequence[Run]: ...


def outline(segment: Tokens) -> list[Block]:
    """The segment's blocks. Markup goes with the message that it ends or begins."""
    header = next(
        (segment.ids[start] for kind, _, start, _ in segment.spans if kind == "header"), -1
    )
    turns = {start: turn for _, turn, start, _ in segment.spans}
    blocks: list[Block] = []
    open_key: tuple[str, bool] | None = None
    before: list[Run] = []
    for author, start, stop in _pieces(segment):
        if author == "template":
            cut = _message_start(segment, header, start, stop) if blocks else start
            if cut > start:
                blocks[-1].pieces.append((author, start, cut))
            if stop > cut:
                before.append((author, cut, stop))
                open_key = None
            continue
        key = (author, bool(_mask(segment, start)))
        if key != open_key:
            name = NAMES.get(author, author)
            if author == "policy" and key[1]:
                name += f", turn {turns[start] + 1}" if start in turns else ""
            blocks.append(Block(author, name, key[1], []))
        open_key = key
        blocks[-1].pieces.extend([*before, (author, start, stop)])
        before = []
    if before:
        blocks.append(Block("template", "Template", False, before))
    return blocks


def _blocks(segment: SegmentTrace) -> list[Json]:
    return [
        {
            "author": block.author,
            "name": block.name,
            "trained": block.trained,
            "chunks": [_chunk(segment, *piece) for piece in block.pieces],
        }
        for block in outline(segment)
    ]


def _pieces(segment: Tokens) -> Iterator[Run]:
    """The author runs, split where the mask changes."""
    mask = np.asarray(segment.loss_mask, dtype=np.int8)
    changes = segment.prompt_length + 1 + np.flatnonzero(np.diff(mask))
    if mask.size and mask[0]:
        changes = np.concatenate(([segment.prompt_length], changes))
    for author, start, stop in segment.authors:
        first, last = np.searchsorted(changes, (start, stop), side="right")
        cuts = [int(at) for at in changes[first:last] if at < stop]
        for begin, end in pairwise((start, *cuts, stop)):
            yield author, begin, end


def _mask(segment: Tokens, at: int) -> int:
    return segment.loss_mask[at - segment.prompt_length] if at >= segment.prompt_length else 0


def _message_start(segment: Tokens, header: int, start: int, stop: int) -> int:
    """Where in a run of markup the next message begins: at the token that opens headers.

    Without such a token all of it belongs to the next message.
    """
    for at in reversed(range(start, stop)):
        if segment.ids[at] == header:
            return at
    return start


def _chunk(segment: SegmentTrace, author: str, start: int, stop: int) -> Json:
    kept = list(range(start, stop))
    chunk: Json = {
        "author": author,
        "trained": bool(_mask(segment, start)),
        "count": stop - start,
    }
    if stop - start > HEAD + TAIL:
        kept = [*range(start, start + HEAD), *range(stop - TAIL, stop)]
        chunk["gap"] = [HEAD, stop - start - HEAD - TAIL]
    chunk["texts"] = [segment.texts[at] for at in kept]
    chunk["ids"] = [segment.ids[at] for at in kept]
    if chunk["trained"]:
        chunk["logprobs"] = [segment.logprobs[at - segment.prompt_length] for at in kept]
    return chunk


def _size(segment: SegmentTrace) -> int:
    return sum(min(stop - start, HEAD + TAIL) for _, start, stop in segment.authors)


def messages(trace: Trace) -> list[Json]:
    """The transcript, for an episode of which no tokens are known or shown."""
    authors = {"assistant": "policy", "developer": "system", "function": "tool"}
    blocks = []
    for message in trace.transcript:
        role = str(message.get("role", "?"))
        author = authors.get(role, role)
        content = message.get("content")
        parts = [content if isinstance(content, str) else _dump(content)] if content else []
        parts += [_dump(call) for call in message.get("tool_calls") or []]
        chunk = {"author": author, "trained": False, "count": 0, "texts": [_cut("\n".join(parts))]}
        blocks.append(
            {
                "author": author,
                "name": NAMES.get(author, role),
                "trained": False,
                "chunks": [chunk],
            }
        )
    return blocks


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} ... ({len(text) - MAX_TEXT} characters left out)"

"""Traces as the data that the page's viewer shows: conversations made of coloured tokens.

A conversation is a list of blocks, one for each stretch by one author, with the template's markup
around it. A block is a list of chunks of tokens that share author and mask. What is too long is
left out of the middle of a chunk, and the chunk says how much.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from turnwise.report.plots import script_json
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
        segments = [_messages(trace)]
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
        "facts": _facts(trace, count),
        "more": _cut(json.dumps(trace.info, ensure_ascii=False, indent=1)),
        "segments": segments,
    }


def _facts(trace: Trace, count: int) -> list[tuple[str, str]]:
    trained = sum(sum(segment.loss_mask) for segment in trace.segments)
    facts = [
        ("task", trace.task_id),
        ("rollout", trace.rollout_id),
        ("score", "none" if trace.score is None else f"{trace.score:g}"),
        ("ending", trace.ending),
        ("tokens", f"{count}, {trained} of them trained" if count else "not known"),
        ("time", f"{trace.wall_s:.2f} s"),
    ]
    if trace.error:
        facts.append(("error", _cut(trace.error)))
    return facts + [
        (name.replace("_", " "), f"{value:.4g}")
        for name, value in trace.metrics.items()
        if value is not None
    ]


def _blocks(segment: SegmentTrace) -> list[Json]:
    """The segment's blocks. Markup goes with the message that it ends or begins."""
    header = next(
        (segment.ids[start] for kind, _, start, _ in segment.spans if kind == "header"), -1
    )
    turns = {start: turn for _, turn, start, _ in segment.spans}
    blocks: list[Json] = []
    open_key: tuple[str, bool] | None = None
    before: list[Json] = []
    for author, start, stop in _pieces(segment):
        if author == "template":
            cut = _message_start(segment, header, start, stop) if blocks else start
            if cut > start:
                blocks[-1]["chunks"].append(_chunk(segment, author, start, cut))
            if stop > cut:
                before.append(_chunk(segment, author, cut, stop))
                open_key = None
            continue
        key = (author, bool(_mask(segment, start)))
        if key != open_key:
            name = NAMES.get(author, author)
            if author == "policy" and key[1]:
                name += f", turn {turns[start] + 1}" if start in turns else ""
            blocks.append({"author": author, "name": name, "trained": key[1], "chunks": []})
        open_key = key
        blocks[-1]["chunks"] += [*before, _chunk(segment, author, start, stop)]
        before = []
    if before:
        blocks.append(
            {"author": "template", "name": "Template", "trained": False, "chunks": before}
        )
    return blocks


def _pieces(segment: SegmentTrace) -> Iterator[tuple[str, int, int]]:
    """The author runs, split where the mask changes."""
    for author, start, stop in segment.authors:
        begin = start
        for at in range(start + 1, stop):
            if _mask(segment, at) != _mask(segment, at - 1):
                yield author, begin, at
                begin = at
        yield author, begin, stop


def _mask(segment: SegmentTrace, at: int) -> int:
    return segment.loss_mask[at - segment.prompt_length] if at >= segment.prompt_length else 0


def _message_start(segment: SegmentTrace, header: int, start: int, stop: int) -> int:
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


def _messages(trace: Trace) -> list[Json]:
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

"""What the page asks for of a run's episodes, as JSON-able values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from turnwise.report.viewer import facts, messages
from turnwise.view.calls import calls_of
from turnwise.view.episodes import ORDERS, Entry, EpisodeIndex, Filter, endings
from turnwise.view.lanes import lanes, rewrites
from turnwise.view.run import ViewedRun
from turnwise.view.started import replay_command
from turnwise.view.tokens import OpenEpisode, common_tokens

PAGE = 100
"""Episodes of one answer."""
PIECE = 2000
"""Tokens that the page draws or drops at once."""
MAX_COLUMNS = 16
"""Rollouts of a group beside each other."""
MAX_INFO = 20_000
"""Characters shown of what else is known of an episode."""
Json = dict[str, Any]


def episode_list(run: ViewedRun, wanted: Filter, order: str, start: int, until: float) -> Json:
    """Episodes `start` to `start + PAGE` of those that are asked for.

    Args:
        until: When a full text search stops, by the monotonic clock.
    """
    index = run.index
    found, searched = index.find(wanted, order if order in ORDERS else "newest", until)
    return {
        "rows": [_row(index, entry) for entry in found[start : start + PAGE]],
        "found": len(found),
        "known": len(index.entries),
        "broken": index.broken,
        "problems": index.problems,
        "complete": index.file.complete and searched,
        "read": [index.file.offset, index.file.size],
        "orders": list(ORDERS),
        "endings": endings(index.entries),
        "page": PAGE,
    }


def episode(run: ViewedRun, entry: Entry) -> Json:
    """What is said of an episode before its tokens: facts, and the outline that they fill."""
    opened = run.open(entry)
    trace = opened.trace
    info = json.dumps(trace.info, ensure_ascii=False, indent=1)
    if len(info) > MAX_INFO:
        info = f"{info[:MAX_INFO]} ... ({len(info) - MAX_INFO} characters left out)"
    told = [
        (name, _tokens_in_words(opened) if name == "tokens" else value)
        for name, value in facts(trace, opened.tokens)
    ]
    told += _trainers(opened)
    return {
        **_row(run.index, entry),
        "facts": told,
        "info": info,
        "tokens": opened.tokens,
        "segments": [_outline(opened, number) for number in range(len(opened.segments))],
        "lanes": lanes(opened.segments),
        "rewrites": rewrites(trace),
        "calls": calls_of(trace),
        "replay": replay_command(run.folder, opened, entry.line + 1),
        "messages": [] if opened.segments else messages(trace),
        "siblings": len(run.index.group(entry)),
        "before": _line(run.index, entry, -1),
        "after": _line(run.index, entry, 1),
    }


def group(run: ViewedRun, entry: Entry) -> Json:
    """The kept rollouts of a group, and how far they are the same."""
    entries = run.index.group(entry)
    shown = entries[:MAX_COLUMNS]
    opened = [run.open(one) for one in shown]
    columns = [messages(one.trace) for one in opened]
    return {
        "task_id": entry.task_id,
        "kind": entry.kind,
        "step": entry.step,
        "kept": len(entries),
        "common_tokens": common_tokens(opened),
        "common_messages": _common(columns),
        "columns": [
            {**_row(run.index, one), "messages": column}
            for one, column in zip(shown, columns, strict=True)
        ],
    }


def _row(index: EpisodeIndex, entry: Entry) -> Json:
    row: Json = msgspec.structs.asdict(entry)
    return {**row, "spread": index.spread(entry)}


def _tokens_in_words(opened: OpenEpisode) -> str:
    if not opened.segments:
        return "not known"
    return f"{opened.tokens:,}, {opened.trained:,} of them trained"


def _trainers(opened: OpenEpisode) -> list[tuple[str, str]]:
    """What the trainer found of the episode, where it is recorded."""
    known = [one for one in opened.segments if one.advantage is not None]
    if not known:
        return []
    clipped = sum(len(one.clipped) for one in known)
    return [
        ("advantage", ", ".join(dict.fromkeys(f"{one.advantage:+.3f}" for one in known))),
        ("largest engine-trainer gap", f"{max(one.gap or 0.0 for one in known):.2g}"),
        ("clipped tokens", f"{clipped:,}"),
    ]


def _outline(opened: OpenEpisode, number: int) -> Json:
    """The blocks of a segment, each as ranges of `PIECE` tokens at most."""
    segment = opened.segments[number]
    turns = {start: turn for _, turn, start, _ in segment.spans}
    blocks = []
    for block in segment.blocks:
        start, stop = block.pieces[0][1], block.pieces[-1][2]
        own = sum(b - a for author, a, b in block.pieces if author == block.author)
        first_own = next((a for author, a, _ in block.pieces if author == block.author), -1)
        first, last = int(segment.ends[start - 1]) if start else 0, int(segment.ends[stop - 1])
        blocks.append(
            {
                "author": block.author,
                "name": block.name,
                "trained": block.trained,
                "turn": turns.get(first_own) if block.trained else None,
                "count": own,
                "characters": last - first,
                "lines": segment.text.count("\n", first, last),
                "pieces": [(at, min(at + PIECE, stop)) for at in range(start, stop, PIECE)],
            }
        )
    return {"weight": segment.weight, "tokens": len(segment.ids), "blocks": blocks}


def _line(index: EpisodeIndex, entry: Entry, way: int) -> int | None:
    """The line of the episode before or after."""
    place = index.place(entry.line) + way
    return index.entries[place].line if 0 <= place < len(index.entries) else None


def _common(columns: Sequence[Sequence[Json]]) -> int:
    """How many messages from the start all columns share."""
    count = 0
    for row in zip(*columns, strict=False):
        if any(one != row[0] for one in row[1:]):
            break
        count += 1
    return count

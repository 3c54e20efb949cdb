"""The episodes of a run: an index of where each stands, filters, orders and full text.

An episode costs a few hundred bytes here; its tokens and messages stay in the file.
"""

from __future__ import annotations

import json
import sys
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from turnwise.run.traces import SCHEMA_VERSION
from turnwise.view.follow import GrowingFile, read_at

MAX_PROBLEMS = 20
"""Broken lines that are named; all are counted."""
MAX_ERROR = 300
"""Characters kept of an episode's error."""
MAX_SEARCHES = 8
"""Full text searches whose results are kept."""


class _Size(msgspec.Struct, frozen=True):
    authors: list[tuple[str, int, int]] = []
    gap: float | None = None


class _Head(msgspec.Struct, frozen=True):
    """What the index keeps of a line; the rest is not even parsed."""

    step: int
    schema: int = SCHEMA_VERSION
    kind: str = ""
    why: str = ""
    rollout_id: str = ""
    group_id: str = ""
    task_id: str = ""
    ending: str = ""
    error: str | None = None
    score: float | None = None
    wall_s: float = 0.0
    metrics: dict[str, Any] = {}
    segments: list[_Size] = []


class _Said(msgspec.Struct, frozen=True):
    """What a full text search looks at."""

    transcript: msgspec.Raw = msgspec.Raw(b"")
    info: msgspec.Raw = msgspec.Raw(b"")
    error: str | None = None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An episode of the index.

    Attributes:
        line: Its line in episodes.jsonl, counted from 0.
        offset, size: Where the line stands, in bytes.
        tokens: Of all its segments.
        parse_errors: What its method counted, 0 where it counts none.
        gap: The largest difference of a token's log-prob between engine and trainer; None where it
            was not recorded.
    """

    line: int
    offset: int
    size: int
    step: int
    kind: str
    why: str
    rollout_id: str
    group_id: str
    task_id: str
    ending: str
    error: str
    score: float | None
    wall_s: float
    tokens: int
    parse_errors: float
    gap: float | None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which episodes are asked for; empty fields ask for nothing.

    Attributes:
        task: Part of the task's or the rollout's id.
        error: Part of the error's text.
        parse: Whether those with parse errors alone are asked for.
        text: What the messages or the error must hold, capitals aside.
    """

    task: str = ""
    kind: str = ""
    ending: str = ""
    error: str = ""
    parse: bool = False
    least_step: float | None = None
    most_step: float | None = None
    least_score: float | None = None
    most_score: float | None = None
    least_tokens: float | None = None
    text: str = ""

    def takes(self, entry: Entry) -> bool:
        """Whether the episode is one, its text aside."""
        task = self.task.lower()
        return (
            (not task or task in entry.task_id.lower() or task in entry.rollout_id.lower())
            and (not self.kind or self.kind == entry.kind)
            and (not self.ending or self.ending == entry.ending)
            and (not self.error or self.error.lower() in entry.error.lower())
            and (not self.parse or entry.parse_errors > 0)
            and _between(self.least_step, entry.step, self.most_step)
            and _between(self.least_score, entry.score, self.most_score)
            and _between(self.least_tokens, entry.tokens, None)
        )


ORDERS: Mapping[str, Callable[[EpisodeIndex, Entry], float]] = {
    "newest": lambda index, entry: -entry.line,
    "oldest": lambda index, entry: entry.line,
    "best": lambda index, entry: _last(entry.score, -1),
    "worst": lambda index, entry: _last(entry.score, 1),
    "longest": lambda index, entry: -entry.tokens,
    "slowest": lambda index, entry: -entry.wall_s,
    "spread": lambda index, entry: -index.spread(entry),
    "engine-trainer gap": lambda index, entry: _last(entry.gap, -1),
    "parse errors": lambda index, entry: -entry.parse_errors,
}


class _Search:
    """A full text search that goes on where it stopped, also in a file that has grown."""

    def __init__(self) -> None:
        self.next = 0
        self.found: set[int] = set()


class EpisodeIndex:
    """Where the episodes of a growing `episodes.jsonl` stand."""

    def __init__(self, path: Path) -> None:
        self.file = GrowingFile(path)
        self.entries: list[Entry] = []
        self.problems: list[str] = []
        self.broken = 0
        self._number = 0
        self._generation = 0
        self._groups: dict[tuple[str, int, str], list[int]] = {}
        self._spreads: dict[tuple[str, int, str], tuple[float, float]] = {}
        self._searches: OrderedDict[str, _Search] = OrderedDict()
        self._decode = msgspec.json.Decoder(_Head).decode
        self._said = msgspec.json.Decoder(_Said).decode

    def refresh(self, until: float) -> None:
        """Reads new lines, until a time of the monotonic clock."""
        self.file.look()
        if self.file.generation != self._generation:
            self._forget()
        for offset, line in self.file.lines(until):
            try:
                head = self._decode(line)
                if head.schema != SCHEMA_VERSION:
                    raise ValueError(f"schema {head.schema}: this version reads {SCHEMA_VERSION}")
            except (ValueError, RecursionError) as error:
                self.broken += 1
                if len(self.problems) < MAX_PROBLEMS:
                    name = self.file.path.name
                    self.problems.append(f"{name}:{self._number + 1} is left out: {error}")
            else:
                self._add(head, offset, len(line))
            self._number += 1

    def _forget(self) -> None:
        self._generation = self.file.generation
        self.entries, self.problems, self.broken, self._number = [], [], 0, 0
        self._groups, self._spreads = {}, {}
        self._searches.clear()

    def _add(self, head: _Head, offset: int, size: int) -> None:
        parse_errors = head.metrics.get("parse_errors")
        entry = Entry(
            line=self._number,
            offset=offset,
            size=size,
            step=head.step,
            kind=sys.intern(head.kind),
            why=sys.intern(head.why),
            rollout_id=head.rollout_id,
            group_id=sys.intern(head.group_id),
            task_id=sys.intern(head.task_id),
            ending=sys.intern(head.ending),
            error=(head.error or "")[:MAX_ERROR],
            score=head.score,
            wall_s=head.wall_s,
            tokens=sum(one.authors[-1][2] for one in head.segments if one.authors),
            parse_errors=parse_errors if isinstance(parse_errors, int | float) else 0.0,
            gap=max((one.gap for one in head.segments if one.gap is not None), default=None),
        )
        key = group_key(entry)
        self._groups.setdefault(key, []).append(len(self.entries))
        if entry.score is not None:
            low, high = self._spreads.get(key, (entry.score, entry.score))
            self._spreads[key] = (min(low, entry.score), max(high, entry.score))
        self.entries.append(entry)

    def at_line(self, line: int) -> Entry | None:
        """The episode on a line; None where there is none."""
        place = self.place(line)
        if place < len(self.entries) and self.entries[place].line == line:
            return self.entries[place]
        return None

    def place(self, line: int) -> int:
        """Where the episode of a line stands among the entries, or would stand."""
        return bisect_left(self.entries, line, key=lambda entry: entry.line)

    def group(self, entry: Entry) -> list[Entry]:
        """The episodes kept of the entry's group, itself among them."""
        return [self.entries[place] for place in self._groups[group_key(entry)]]

    def spread(self, entry: Entry) -> float:
        """Largest less smallest score of the group's kept episodes; -1 where none has one."""
        low, high = self._spreads.get(group_key(entry), (0.0, -1.0))
        return high - low

    def read(self, entry: Entry) -> bytes:
        """The episode's line."""
        return read_at(self.file.path, entry.offset, entry.size)

    def find(self, wanted: Filter, order: str, until: float) -> tuple[list[Entry], bool]:
        """The episodes that are asked for, in order, and whether all text was searched.

        Args:
            order: One of `ORDERS`.
            until: When a full text search stops, by the monotonic clock; the next call goes on.
        """
        found = [entry for entry in self.entries if wanted.takes(entry)]
        done = True
        if wanted.text:
            search = self._search(wanted.text, until)
            done = search.next >= len(self.entries)
            found = [entry for entry in found if entry.line in search.found]
        found.sort(key=lambda entry: ORDERS[order](self, entry))
        return found, done

    def _search(self, text: str, until: float) -> _Search:
        search = self._searches.setdefault(text, _Search())
        self._searches.move_to_end(text)
        while len(self._searches) > MAX_SEARCHES:
            self._searches.popitem(last=False)
        needle = text.lower()
        # In the file capitals beyond ASCII stand as they are, so only what is ASCII can be sought
        # before the line is parsed.
        quick = json.dumps(needle)[1:-1].encode() if needle.isascii() else b""
        while search.next < len(self.entries):
            entry = self.entries[search.next]
            search.next += 1
            line = self.read(entry)
            if quick in line.lower() and self._says(line, needle):
                search.found.add(entry.line)
            if time.monotonic() > until:
                break
        return search

    def _says(self, line: bytes, needle: str) -> bool:
        try:
            said = self._said(line)
            parts = [msgspec.json.decode(raw) for raw in (said.transcript, said.info) if raw]
        except (ValueError, RecursionError):
            return False
        return needle in (said.error or "").lower() or any(_holds(one, needle) for one in parts)


def group_key(entry: Entry) -> tuple[str, int, str]:
    """What the episodes of a group share: kind, step and the group's id."""
    return (entry.kind, entry.step, entry.group_id or entry.task_id)


def endings(entries: Sequence[Entry]) -> list[str]:
    """The endings that occur."""
    return sorted({entry.ending for entry in entries})


def _holds(value: Any, needle: str) -> bool:
    """Whether a text within the value holds the needle."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if needle in one.lower():
                return True
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return False


def _between(least: float | None, value: float | None, most: float | None) -> bool:
    if least is None and most is None:
        return True
    if value is None:
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def _last(score: float | None, sign: int) -> float:
    """Episodes without a score come last in either order."""
    return float("inf") if score is None else sign * score

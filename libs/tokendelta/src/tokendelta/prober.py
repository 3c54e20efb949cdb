"""Renders probe conversations and finds the places where a sampled turn ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tokendelta.errors import TemplateError
from tokendelta.probes import (
    BLANK_KINDS,
    MARK,
    THINK_KINDS,
    TOOLS,
    History,
    Messages,
    TurnKind,
    histories,
    turn,
)
from tokendelta.rendering import Renderer

Place = Literal["history", "header", "turn"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the sampled part of the marked turn ends.

    `closed` is a place in the render that ends with the turn, `after` one in the render with the
    environment's answer. What follows `after` is the continuation.
    """

    closed: int
    after: int


def cut(closed: str, after: str, has_calls: bool, stops: Sequence[str]) -> Cut | None:
    """Find the end of the marked turn in both renders, or None if one does not show the mark.

    Text closes a call behind its last argument. It ends before the stop token, if the turn's
    render has one, and else where the two renders part.
    """
    left, right = closed.rfind(MARK), after.rfind(MARK)
    if left < 0 or right < 0:
        return None
    left, right = left + len(MARK), right + len(MARK)
    if not has_calls:
        return Cut(left, right)
    shared = common_length(closed[left:], after[right:])
    places = [closed.rfind(stop, left) for stop in stops]
    at = max((place - left for place in places if place >= 0), default=-1)
    length = min(at, shared) if at >= 0 else shared
    return Cut(left + length, right + length)


def common_length(left: str, right: str) -> int:
    """Leading characters that two texts share."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def rewritten_place(
    previous: str | None,
    prompt: str,
    closed: str,
    after: str,
    at: Cut,
    kind: TurnKind,
    reasoning_close: str,
) -> Place | None:
    """What a transition rewrites first, or None if it only appends.

    previous  the render before the turn without a generation prompt
    prompt    the same with it, as the engine was sent
    closed    the render with the turn at its end
    after     the render with the environment's answer

    A turn without reasoning may be shown with an empty reasoning block as long as it is the last:
    what was sampled holds none, so taking the block away rewrites nothing. Of a turn with an empty
    block, the block has to stay.
    """
    reasoned = kind in THINK_KINDS or kind in BLANK_KINDS
    if not after.startswith(prompt):
        shared = common_length(after, prompt)
        in_history = previous is None or shared < common_length(previous, prompt)
        return "history" if in_history else "header"
    kept = after[len(prompt) : at.after]
    if closed.startswith(prompt):
        shown = closed[len(prompt) : at.closed]
        if kind in BLANK_KINDS and reasoning_close.strip() not in prompt[-64:] + kept:
            return "turn"
        if kept == shown or (not reasoned and shown.endswith(kept)):
            return None
        return "turn"
    return None if not reasoned else "header"


@dataclass
class Prober:
    """Memoised renders of probe conversations; None where the template raises."""

    renderer: Renderer
    stops: Sequence[str] = ()
    reasoning_field: str = "reasoning_content"
    reasoning_close: str = ""
    shows_calls: bool = True
    _renders: dict[str, str | None] = field(default_factory=dict)

    def render(
        self, messages: Messages, *, tools: bool = False, generation: bool = False
    ) -> str | None:
        key = json.dumps([messages, tools, generation])
        if key not in self._renders:
            try:
                text = self.renderer.render(
                    messages, tools=TOOLS if tools else None, generation=generation
                )
            except TemplateError:
                self._renders[key] = None
            else:
                self._renders[key] = text
        return self._renders[key]

    def tail(self, history: Messages, answer: Messages, *, tools: bool = False) -> str | None:
        """The continuation after the history, or None if it cannot be rendered."""
        after = self.render([*history, *answer], tools=tools, generation=True)
        has_calls = bool(history[-1].get("tool_calls"))
        closed = self.render(history, tools=tools) if has_calls else MARK
        if after is None or closed is None:
            return None
        at = cut(closed, after, has_calls, self.stops)
        return None if at is None else after[at.after :]

    def rewrites(
        self, history: Messages, answer: Messages, kind: TurnKind, *, tools: bool
    ) -> Place | Literal["nothing"] | None:
        """What the transition rewrites, or None if it cannot be rendered."""
        previous = self.render(history[:-1], tools=tools)
        prompt = self.render(history[:-1], tools=tools, generation=True)
        closed = self.render(history, tools=tools)
        after = self.render([*history, *answer], tools=tools, generation=True)
        if prompt is None or closed is None or after is None:
            return None
        at = cut(closed, after, bool(history[-1].get("tool_calls")), self.stops)
        if at is None:
            return "turn"
        close = self.reasoning_close
        place = rewritten_place(previous, prompt, closed, after, at, kind, close)
        return place or "nothing"

    def histories(self, kind: TurnKind, field: str = "") -> list[History]:
        return histories(kind, field or self.reasoning_field, self.shows_calls)

    def turn(self, kind: TurnKind, value: str, **given: Any) -> dict[str, Any]:
        """A probe turn in the way that the template shows."""
        return turn(kind, value, field=self.reasoning_field, shows_calls=self.shows_calls, **given)

"""What an episode has done so far, in bounded space.

1. A result longer than its bound loses its middle: its beginning says what it is, its end what
   came out.
2. What a prompt is shown is JSON, one action a line: the words of a tool can't end a field.
3. When the lines outgrow their bound, every text in them is cut to half as often as needed, down
   to `CUT_CHARACTERS`; then the oldest actions give way to their number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnwise.printable import cut_middle

CUT_CHARACTERS = 128
"""What a text keeps before whole actions are left out."""
MIN_CHARACTERS = 512
"""Room for one action, however long its texts are."""
# JSON writes these as they are, and readers take them for the end of a line.
_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


@dataclass(frozen=True, slots=True)
class Action:
    """One step that was taken.

    Attributes:
        tool: The tool's name; "" for a step that could not be read.
        sub_goal: What the planner wanted of it.
        arguments: What the executor gave the tool, JSON-able; None if nothing was given.
        result: What came of it, in words.
        failed: Why it brought nothing, None if it did.
    """

    tool: str
    sub_goal: str
    arguments: Mapping[str, Any] | None
    result: str
    failed: str | None = None


class Memory:
    """The actions of one episode; a new one for every question.

    Attributes:
        actions: In order, results cut.
    """

    def __init__(self, *, result_characters: int = 4096, characters: int = 24_000) -> None:
        """
        Args:
            result_characters: A result is cut in the middle beyond this.
            characters: `render` gives at most this many.

        Raises:
            ValueError: a bound with no room for an action.
        """
        if result_characters < 1 or characters < MIN_CHARACTERS:
            raise ValueError(
                f"result_characters must be at least 1 and characters at least {MIN_CHARACTERS},"
                f" found {result_characters} and {characters}"
            )
        self._result_characters = result_characters
        self._characters = characters
        self.actions: list[Action] = []

    def add(self, action: Action) -> Action:
        """Appends the action with its texts cut; returns it as it is kept."""
        limit = self._result_characters
        result, sub_goal = cut_middle(action.result, limit), cut_middle(action.sub_goal, limit)
        self.actions.append(replace(action, result=result, sub_goal=sub_goal))
        return self.actions[-1]

    def render(self, *, compact: bool = False) -> str:
        """The actions as JSON lines, at most `characters` in all; "" without actions.

        `compact` leaves out the arguments.
        """
        actions = list(enumerate(self.actions, start=1))
        limit = max(self._result_characters, CUT_CHARACTERS)
        left_out = 0
        while True:
            text = _lines(actions, limit, left_out, compact)
            if len(text) <= self._characters:
                return text
            if limit > CUT_CHARACTERS or len(actions) == 1:
                limit = max(1, limit // 2)
            else:
                actions, left_out = actions[1:], left_out + 1


def _lines(actions: Sequence[tuple[int, Action]], limit: int, left_out: int, compact: bool) -> str:
    rows: list[dict[str, Any]] = [{"steps_left_out": left_out}] if left_out else []
    rows += [_row(number, action, limit, compact) for number, action in actions]
    return "\n".join(json.dumps(row, ensure_ascii=False).translate(_LINE_ENDS) for row in rows)


def _row(number: int, action: Action, limit: int, compact: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"step": number, "tool": action.tool}
    if action.sub_goal:
        row["sub_goal"] = cut_middle(action.sub_goal, limit)
    if action.arguments is not None and not compact:
        row["arguments"] = _cut(action.arguments, limit)
    if action.failed is not None:
        row["failed"] = action.failed
    row["result"] = cut_middle(action.result, limit)
    return row


def _cut(arguments: Mapping[str, Any], limit: int) -> dict[str, Any] | str:
    text = json.dumps(arguments, ensure_ascii=False)
    return dict(arguments) if len(text) <= limit else cut_middle(text, limit)

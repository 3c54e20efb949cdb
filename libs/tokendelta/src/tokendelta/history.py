"""Histories that clients send, as a trie: which of them agree, and how far.

A node stands for one message behind those of its parents. There are two kinds. A *context* node is
a message from outside, equal key by key to what came. A *turn* node is a turn that was committed,
found again by every way to write it down that `echo` knows. A look-up reads each message once and
does nothing else that grows with the history.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tokendelta.echo import Said, echo, said
from tokendelta.errors import MessageError
from tokendelta.rendering import ROLES, Message, Tool
from tokendelta.segment import Mark, Segment

if TYPE_CHECKING:
    from tokendelta.profile import Reasoning
    from tokendelta.ticket import Slot

Key = tuple[Any, ...]


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """One message. `slot` is the turn of a turn node; `slots` are the turns asked for behind this
    message, `asked` is where their prompt ends, and what reasoned before it."""

    parent: Node | None
    slot: Slot | None = None
    children: dict[Key, list[Node]] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    asked: tuple[Segment, Mark, Reasoning] | None = None


@dataclass(slots=True, eq=False, repr=False)
class Root(Node):
    """The start of all histories with one list of tools."""

    tools: list[Tool] | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """How far a history agrees with the trie.

    ends    nodes that stand for the whole history.
    bases   turn nodes that stand for its last assistant message, the closest echo first.
    deepest the last node that agrees, and `agreed` its number of messages.
    told    messages behind the last assistant message.
    """

    keys: list[Key]
    ends: list[Node]
    bases: list[Node]
    deepest: Node
    agreed: int
    told: int


class Histories:
    """The trie, one root for each list of tools."""

    __slots__ = ("_roots", "_said", "_tags")

    def __init__(self, tags: tuple[str, str]) -> None:
        self._tags = tags
        self._roots: dict[Any, Root] = {}
        self._said: dict[Key, Said] = {}

    def root(self, tools: Sequence[Tool] | None) -> Root:
        """The root of histories with these tools, in this order and spelling."""
        try:
            key = _spelled(list(tools)) if tools else ""
        except (RecursionError, ValueError) as error:
            raise MessageError(f"the list of tools is nested too deeply: {error}") from error
        if key not in self._roots:
            self._roots[key] = Root(None, tools=list(tools) if tools else None)
        return self._roots[key]

    def find(self, root: Root, messages: Sequence[Message]) -> Path:
        """Follow a history from a root. Changes nothing."""
        keys = [key_of(message, index) for index, message in enumerate(messages)]
        last = max((i for i, key in enumerate(keys) if key[0] == "assistant"), default=-1)
        front: list[tuple[int, Node]] = [(0, root)]
        bases: list[tuple[int, Node]] = []
        agreed = 0
        for index, key in enumerate(keys):
            found: list[tuple[int, Node]] = []
            if key[0] == "assistant":
                found = self._turns(front, key, messages[index])
                if index == last:
                    bases = found[:]
            for close, node in front:
                for child in node.children.get(key, ()):
                    found.append((close, child))
            if not found:
                break
            front, agreed = found, index + 1
        front.sort(key=_rank, reverse=True)
        bases.sort(key=_rank, reverse=True)
        ends = [node for _, node in front] if agreed == len(keys) else []
        return Path(keys, ends, [node for _, node in bases], front[0][1], agreed, last + 1)

    def add(self, node: Node, keys: Sequence[Key]) -> Node:
        """The node behind these messages from outside, made where there is none."""
        for key in keys:
            children = node.children.setdefault(key, [])
            child = next((c for c in children if c.slot is None), None)
            if child is None:
                child = Node(node)
                children.append(child)
            node = child
        return node

    def add_turn(self, slot: Slot, key: Key, message: Message) -> None:
        """Let a turn be found behind the request that it answers, by what was sent for it."""
        known = slot.said = self._said[key] = said(message, self._tags)
        node = Node(slot.node, slot)
        for text in {known.text, *known.with_stops(slot.stops)}:
            slot.node.children.setdefault(("turn", text, known.calls), []).append(node)

    def _turns(
        self, front: list[tuple[int, Node]], key: Key, message: Message
    ) -> list[tuple[int, Node]]:
        """Turns behind the nodes that the message is an echo of."""
        told = self._said.get(key) or said(message, self._tags)
        found = []
        for close, node in front:
            for child in node.children.get(("turn", told.text, told.calls), ()):
                assert child.slot is not None and child.slot.said is not None, "a turn node"
                more = echo(child.slot.said, told, child.slot.stops)
                if more is not None:
                    found.append((close + more, child))
        if found:
            self._said[key] = told
        return found


def _rank(entry: tuple[int, Node]) -> tuple[int, int]:
    """The closest first, and of equal ones the turn that was asked for last."""
    close, node = entry
    return close, node.slot.number if node.slot is not None else -1


def key_of(message: Any, index: int) -> Key:
    """A message as a dictionary key: the role, the content, and what else it holds.

    Raises MessageError for what is no message.
    """
    if not isinstance(message, Mapping):
        raise MessageError(
            f"message {index} of the history is {type(message).__name__}, not a mapping with a role"
        )
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in ROLES:
        raise MessageError(
            f"message {index} of the history has role {role!r}; expected one of {sorted(ROLES)}"
        )
    if len(message) == 2 and type(content) is str:
        return role, content
    try:
        rest = [
            (
                name if type(name) is str else str(name),
                value if type(value) is str else _spelled(value),
            )
            for name, value in message.items()
            if value is not None and name != "role" and name != "content"
        ]
        if len(rest) > 1:
            rest.sort(key=itemgetter(0))
        return (role, _spelled(content), *rest)
    except (RecursionError, ValueError) as error:
        raise MessageError(
            f"message {index} of the history ({role}) is nested too deeply: {error}"
        ) from error


def _spelled(value: Any) -> Any:
    """Text as it is, all else as bytes or in a tuple, so that no text can look like it."""
    if type(value) is str:
        return value
    try:
        # The second version writes the same bytes for equal values, whatever else refers to them.
        return marshal.dumps(value, 2)
    except ValueError:
        return (json.dumps(value, default=str),)

"""Histories that clients send, as a trie: which of them agree, and how far.

A node stands for one message behind those of its parents. There are two kinds. A *context* node is
a message from outside, equal key by key to what came. A *turn* node is a turn that was committed,
found again by every way to write it down that `echo` knows. A look-up reads each message once and
does nothing else that grows with the history. `Known` messages were read before: a history of them
that goes on behind one which was followed is followed from there.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, TypeGuard

from tokendelta.echo import Said, echo, said, transcribed
from tokendelta.errors import MessageError
from tokendelta.rendering import ROLES, Message, Tool
from tokendelta.segment import Mark, Segment

if TYPE_CHECKING:
    from tokendelta.profile import Reasoning
    from tokendelta.ticket import Slot

Key = tuple[Any, ...]

# Histories whose way is remembered: a program's own and those of its sub-agents.
_WALKS = 8


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


class Known(dict[str, Any]):
    """A message that was read once, by `Tree.known`, and may stand in any history of that tree.

    It is not to be changed: what was read of it is kept.
    """

    __slots__ = ("key", "owner", "said")

    def __init__(self, message: Message, key: Key, owner: Histories) -> None:
        super().__init__(message)
        self.key, self.owner = key, owner
        self.said = owner.said(key, message) if key[0] == "assistant" else None


@dataclass(slots=True, eq=False, repr=False)
class Walk:
    """A history of known messages that leads to one node alone, at every place.

    It still does while no turn was added beside another child, which `branchings` counts: a message
    from outside is added only where nothing agreed with it.
    """

    root: Root
    known: Sequence[Message]
    keys: list[Key]
    bases: list[Node]
    told: int
    close: int
    end: Node
    branchings: int = -1


@dataclass(frozen=True, slots=True)
class Path:
    """How far a history agrees with the trie.

    ends    nodes that stand for the whole history.
    bases   turn nodes that stand for its last assistant message, the closest echo first.
    deepest the last node that agrees, and `agreed` its number of messages.
    told    messages behind the last assistant message.
    walk    the way to `deepest`, where it can be remembered.
    """

    keys: list[Key]
    ends: list[Node]
    bases: list[Node]
    deepest: Node
    agreed: int
    told: int
    walk: Walk | None


class Histories:
    """The trie, one root for each list of tools."""

    __slots__ = ("_branchings", "_roots", "_said", "_tags", "_walks")

    def __init__(self, tags: tuple[str, str]) -> None:
        self._tags = tags
        self._roots: dict[Any, Root] = {}
        self._said: dict[Key, Said] = {}
        self._walks: list[Walk] = []
        self._branchings = 0

    def root(self, tools: Sequence[Tool] | None) -> Root:
        """The root of histories with these tools, in this order and spelling."""
        try:
            key = _spelled(list(tools)) if tools else ""
        except (RecursionError, ValueError) as error:
            raise MessageError(f"the list of tools is nested too deeply: {error}") from error
        if key not in self._roots:
            self._roots[key] = Root(None, tools=list(tools) if tools else None)
        return self._roots[key]

    def known(self, message: Message) -> Known:
        """The message as one that is not read again."""
        return Known(message, key_of(message, 0), self)

    def said(self, key: Key, message: Message) -> Said:
        """What an assistant message with this key says."""
        return self._said.get(key) or said(message, self._tags)

    def find(self, root: Root, messages: Sequence[Message]) -> Path:
        """Follow a history from a root. Changes nothing."""
        before = self._walked(root, messages)
        start = len(before.known) if before else 0
        tail = messages[start:]
        tail_keys = [
            one.key if self._knows(one) else key_of(one, index)
            for index, one in enumerate(tail, start)
        ]
        spoken = [index for index, key in enumerate(tail_keys, start) if key[0] == "assistant"]
        last = spoken[-1] if spoken else -1
        front: list[tuple[int, Node]] = [(0, root)]
        bases: list[tuple[int, Node]] = []
        told, keys = last + 1, tail_keys
        if before is not None:
            front, keys = [(before.close, before.end)], before.keys + tail_keys
            if last < 0:
                bases, told = [(0, node) for node in before.bases], before.told
        agreed, alone = start, True
        for index, key in enumerate(tail_keys, start):
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
            front, agreed, alone = found, index + 1, alone and len(found) == 1
        front.sort(key=_rank, reverse=True)
        bases.sort(key=_rank, reverse=True)
        ends = [node for _, node in front] if agreed == len(keys) else []
        nodes, (close, deepest) = [node for _, node in bases], front[0]
        walk = None
        if alone and all(map(self._knows, tail)):
            walk = Walk(root, messages, keys, nodes, told, close, deepest)
        return Path(keys, ends, nodes, deepest, agreed, told, walk)

    def remember(self, path: Path, node: Node) -> None:
        """Follow histories that go on behind this one from the node that it leads to now."""
        walk = path.walk
        if walk is None:
            return
        walk.end, walk.branchings = node, self._branchings
        # What it goes on behind is not asked for again, but for a fork.
        others = [
            one
            for one in self._walks
            if one.branchings == self._branchings
            and not (len(one.known) <= len(walk.known) and _begins(walk.known, one.known))
        ]
        self._walks = [walk, *others[: _WALKS - 1]]

    def _walked(self, root: Root, messages: Sequence[Message]) -> Walk | None:
        """A history that was followed before, with which this one begins."""
        for walk in self._walks:
            if walk.branchings == self._branchings and walk.root is root:
                if len(walk.known) <= len(messages) and _begins(messages, walk.known):
                    return walk
        return None

    def _knows(self, message: Message) -> TypeGuard[Known]:
        return type(message) is Known and message.owner is self

    def add(self, node: Node, keys: Sequence[Key]) -> Node:
        """The node behind these messages from outside, made where there is none."""
        for key in keys:
            child = next((c for c in node.children.get(key, ()) if c.slot is None), None)
            if child is None:
                child = Node(node)
                node.children.setdefault(key, []).append(child)
            node = child
        return node

    def add_turn(self, slot: Slot, key: Key, message: Message) -> None:
        """Let a turn be found behind the request that it answers, by what was sent for it."""
        known = slot.said = self._said[key] = said(message, self._tags, slot.tools)
        node = Node(slot.node, slot)
        self._branchings += bool(slot.node.children)
        for text in {known.text, *known.with_stops(slot.stops)}:
            for calls in {known.calls, known.filled or known.calls}:
                slot.node.children.setdefault(("turn", text, calls), []).append(node)

    def _turns(
        self, front: list[tuple[int, Node]], key: Key, message: Message
    ) -> list[tuple[int, Node]]:
        """Turns behind the nodes that the message is an echo of."""
        told = message.said if self._knows(message) else self.said(key, message)
        assert told is not None, "an assistant message says something"
        found = _matching(front, told)
        if not found and (meant := transcribed(told)) is not None:
            found = [
                (close, node)
                for close, node in _matching(front, meant)
                if node.slot is not None and node.slot.said is not None
                if node.slot.said.ids == meant.ids
            ]
        if found:
            self._said[key] = told
        return found


def _matching(front: list[tuple[int, Node]], told: Said) -> list[tuple[int, Node]]:
    """Turns behind the nodes that say this."""
    found = []
    for close, node in front:
        for child in node.children.get(("turn", told.text, told.calls), ()):
            assert child.slot is not None and child.slot.said is not None, "a turn node"
            more = echo(child.slot.said, told, child.slot.stops)
            if more is not None:
                found.append((close + more, child))
    return found


def _begins(messages: Sequence[Message], known: Sequence[Message]) -> bool:
    """Whether a history, which is not the shorter one, begins with these very messages."""
    return messages[len(known) - 1] is known[-1] and all(map(is_, messages, known))


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

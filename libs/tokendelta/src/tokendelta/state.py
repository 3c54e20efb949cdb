"""What the turns of an episode share, and where one line of it stands.

A `Record` holds the segments and what is said of them; a `SessionState` is a place in it: the
segment that grows, its open turn, and what may come next. `answering`, `branching` and `ingesting`
move a state; whatever fails on the way is undone by `checkpoint` and `restore`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tokendelta._core import Tokens
from tokendelta.errors import StateError
from tokendelta.probes import Messages
from tokendelta.rendering import Tool
from tokendelta.sample import IntArray, Overflow, Rewrite
from tokendelta.segment import Block, Finish, Mark, Segment, Turn

if TYPE_CHECKING:
    from tokendelta.profile import Profile, Reasoning

OnRewrite = Literal["keep", "fork", "error"]
Specials = Literal["parity", "escape", "reject"]
Phase = Literal["new", "prompted", "open", "sampled"]


@dataclass(slots=True, eq=False)
class Record:
    """The segments of an episode with the options that hold for all of them.

    `turns` counts the sampled turns. `blind` says that prompts came as ids, without messages.
    """

    profile: Profile
    max_tokens: int | None
    on_rewrite: OnRewrite
    specials: Specials
    segments: list[Segment] = field(default_factory=list)
    rewrites: list[Rewrite] = field(default_factory=list)
    turns: int = 0
    blind: bool = False

    def overflow(self, needed: int, size: int) -> Overflow | None:
        """What to answer if so many tokens more do not fit behind `size`."""
        if self.max_tokens is None or size + needed <= self.max_tokens:
            return None
        return Overflow(needed, self.max_tokens - size, self.max_tokens)

    def open_segment(self, messages: Messages, tools: list[Tool] | None) -> Segment | Overflow:
        """A new segment whose context is the render of the messages."""
        ids = self.profile.encode_prompt(messages, tools, self.specials == "escape")
        overflow = self.overflow(len(ids), 0)
        if overflow is not None:
            return overflow
        segment = Segment(Tokens(len(ids) + len(ids) // 4 + 256), len(self.segments))
        segment.append_context(ids, "prompt", self.turns)
        segment.messages.extend(messages)
        self.segments.append(segment)
        return segment

    def branch(self, segment: Segment, mark: Mark) -> Segment:
        """A new segment that shares the turns of another up to a place."""
        branch = segment.branch(mark, len(self.segments))
        self.segments.append(branch)
        return branch

    def remove(self, segment: Segment) -> None:
        """Take back the segment that was made last, or the one before it."""
        self.segments.remove(segment)
        for number, left in enumerate(self.segments):
            left.number = number


class Checkpoint(NamedTuple):
    """A state to return to: the place itself, the segments there are, and how far each goes."""

    segment: Segment | None
    turn: Turn | None
    phase: Phase
    reasoned: Reasoning
    tips: list[tuple[Segment, Mark]]


class SessionState:
    """A place in a record. `reasoned` says whether a turn before the last one of the segment
    reasoned since the last user message: templates treat such histories in their own way."""

    __slots__ = ("phase", "reasoned", "record", "segment", "tools", "turn")

    def __init__(self, record: Record, tools: list[Tool] | None) -> None:
        self.record = record
        self.tools = tools
        self.segment: Segment | None = None
        self.turn: Turn | None = None
        self.phase: Phase = "new"
        self.reasoned: Reasoning = "none"

    def current(self, what: str) -> Segment:
        """The segment that grows. Raises StateError before the first prompt."""
        if self.segment is None:
            raise StateError(f"{what}: call start first")
        return self.segment

    def checkpoint(self) -> Checkpoint:
        """The state as it is, for `restore`."""
        tips = [(segment, segment.tip()) for segment in self.record.segments]
        return Checkpoint(self.segment, self.turn, self.phase, self.reasoned, tips)

    def restore(self, saved: Checkpoint) -> None:
        """Undo what was opened and appended since the checkpoint."""
        self.segment, self.turn, self.phase, self.reasoned, tips = saved
        del self.record.segments[len(tips) :]
        for segment, mark in tips:
            segment.rewind(mark)

    def start(self, messages: Messages) -> IntArray | Overflow:
        """Go on in a new segment with the render of the messages."""
        segment = self.record.open_segment(messages, self.tools)
        if isinstance(segment, Overflow):
            return segment
        self.enter(segment)
        return self.prompt()

    def enter(self, segment: Segment) -> None:
        """Stand at the prompt that a segment ends with."""
        if not segment.marks or segment.marks[-1].tokens != segment.tokens.size:
            segment.mark()
        self.segment = segment
        self.turn = None
        self.reasoned = "none"
        self.phase = "prompted"

    def resume(self, segment: Segment, turn: Turn, reasoned: Reasoning) -> None:
        """Stand behind the sampled turn that a segment ends with."""
        self.segment, self.turn, self.reasoned, self.phase = segment, turn, reasoned, "open"

    def prompt(self) -> IntArray:
        """All ids of the current segment: a read-only view."""
        tokens = self.current("prompt").tokens
        return tokens.view(0, tokens.size)

    def sampled(self, count: int, finish: Finish) -> Turn:
        """Note the last tokens of the segment as a turn, or as more of the open one."""
        turn = self.turn if self.phase == "open" else None
        if turn is None:
            turn = self.turn = Turn(self.record.turns, finish)
            self.record.turns += 1
        turn.finish = finish
        self.current("append_sampled").add_sampled(turn, count)
        self.phase = "sampled" if finish == "stop" else "open"
        return turn

    def messages(self) -> Messages:
        """The conversation of the segment, sampled turns as their message or decoded text."""
        if self.record.blind:
            raise StateError(
                "the template needs the messages of this conversation, but its prompts came as ids"
                " through ingest; go on with ingest"
            )
        segment = self.current("messages")
        return [
            self.told(segment, entry) if isinstance(entry, Block) else entry
            for entry in segment.messages
        ]

    def told(self, segment: Segment, block: Block) -> dict[str, Any]:
        """A sampled turn as a message: the parsed one if it was given, else its decoded text."""
        if block.turn is not None and block.turn.message is not None:
            return block.turn.message
        text = self.record.profile.decode(segment.tokens, block.start, block.stop)
        return {"role": "assistant", "content": text}

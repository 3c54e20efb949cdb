"""A whole history of messages: where it extends what is recorded, leaves it or goes back in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendelta import answering
from tokendelta.echo import echo, said, transcribed
from tokendelta.errors import MessageError
from tokendelta.probes import Messages
from tokendelta.rendering import Message
from tokendelta.sample import IntArray, Overflow
from tokendelta.segment import Block, Mark, Segment
from tokendelta.state import SessionState

if TYPE_CHECKING:
    from tokendelta.profile import Reasoning


def sync(state: SessionState, messages: Messages) -> IntArray | Overflow:
    """Go on from the longest recorded history that the messages agree with.

    See Session.sync. Raises with the state moved: the caller restores it.
    """
    if messages[-1]["role"] == "assistant":
        raise MessageError(
            f"sync: message {len(messages) - 1} is from the assistant; the last one must ask for"
            " a turn"
        )
    best, agreed, closest = None, 0, (0, 0)
    for segment in reversed(state.record.segments):
        found = _agreed(state, segment, messages)
        if found > closest:
            best, agreed, closest = segment, found[0], found
    if best is None:
        return state.start(messages)
    if agreed == len(best.messages) and best.blocks[-1].turn and answers(messages[agreed:]):
        return _extend(state, best, messages[agreed:])
    return _leave(state, best, messages, agreed)


def answers(messages: Messages) -> bool:
    """Whether messages can stand between a sampled turn and the next."""
    return bool(messages) and all(message["role"] != "assistant" for message in messages)


def _agreed(state: SessionState, segment: Segment, messages: Messages) -> tuple[int, int]:
    """Leading messages that the segment holds, and how close they come to its sampled turns: of
    two turns that say the same, the one whose ids and reasoning are told wins."""
    count = closeness = 0
    for entry, message in zip(segment.messages, messages, strict=False):
        if isinstance(entry, Block):
            close = _echo(state, segment, entry, message)
            if close is None:
                break
            closeness += close
        elif entry is not message and not _same(entry, message):
            break
        count += 1
    return count, closeness


def _same(left: Message, right: Message) -> bool:
    keys = ("role", "content", "tool_calls", "tool_call_id")
    return all((left.get(key) or None) == (right.get(key) or None) for key in keys)


def _echo(state: SessionState, segment: Segment, block: Block, message: Message) -> int | None:
    """How close an assistant message comes to the sampled turn, or None if it is another one."""
    if message["role"] != "assistant":
        return None
    tags = state.record.profile.think_tags
    sent, told = said(state.told(segment, block), tags, state.tools), said(message, tags)
    close = echo(sent, told)
    if close is None and (meant := transcribed(told)) is not None and meant.ids == sent.ids:
        close = echo(sent, meant)
    return close


def _extend(state: SessionState, segment: Segment, answer: Messages) -> IntArray | Overflow:
    """Go on behind the sampled turn that a segment ends with."""
    turn = segment.blocks[-1].turn
    assert turn is not None, "the segment ends with a turn"
    state.resume(segment, turn, reasoned_before_last(state, segment))
    return answering.answer(state, answer)


def reasoned_before_last(state: SessionState, segment: Segment) -> Reasoning:
    """Whether a turn before the last reasoned since the last user message."""
    found: Reasoning = "none"
    for entry in segment.messages[:-1]:
        if isinstance(entry, Block):
            reasoning = state.record.profile.reasoning(segment.tokens, entry.start, entry.stop)
            found = reasoning if found != "some" and reasoning != "none" else found
        elif entry["role"] == "user":
            found = "none"
    return found


def _leave(
    state: SessionState, segment: Segment, messages: Messages, agreed: int
) -> IntArray | Overflow:
    """Take another way from the last prompt or turn that the messages agree with."""
    for mark in reversed(segment.marks):
        if mark.messages == agreed == len(messages):
            return _return_to(state, segment, mark)
        if mark.messages >= agreed:
            continue
        answer = messages[mark.messages + 1 :]
        if segment.blocks[mark.blocks].turn is None or not answers(answer):
            break
        end = segment.behind(mark.blocks, mark.messages + 1)
        return _extend(state, state.record.branch(segment, end), answer)
    return state.start(messages)


def _return_to(state: SessionState, segment: Segment, mark: Mark) -> IntArray:
    """Ask again at a prompt that was recorded: the turns up to it are shared."""
    if mark.tokens != segment.tokens.size:
        segment = state.record.branch(segment, mark)
    state.enter(segment)
    return state.prompt()

"""Whole histories and engine records: where they extend, leave or contradict what is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from tokendelta._core import Tokens, common_prefix
from tokendelta.errors import LengthError, MessageError, TokenIdError
from tokendelta.probes import Messages
from tokendelta.rendering import Message, check_messages
from tokendelta.sample import Drift, Ingest, IntArray, Overflow
from tokendelta.segment import Block, Finish, Mark, Segment

if TYPE_CHECKING:
    from tokendelta.profile import Reasoning
    from tokendelta.session import Session


def first_drift(segment: Segment, ids: IntArray) -> Drift | None:
    """Where the segment and a full render of it differ first, or None if they are equal."""
    tokens = segment.tokens
    at = common_prefix(tokens.view(0, tokens.size), ids)
    if at == tokens.size == len(ids):
        return None
    block = next((b for b in segment.blocks if b.start <= at < b.stop), segment.blocks[-1])
    return Drift(
        segment.blocks[-1].number,
        at,
        block.kind,
        tokens[at] if at < tokens.size else -1,
        int(ids[at]) if at < len(ids) else -1,
    )


def sync(session: Session, messages: Sequence[Message]) -> IntArray | Overflow:
    """See Session.sync."""
    checked = check_messages(messages, "sync, before turn", session._turns)
    if checked[-1]["role"] == "assistant":
        raise MessageError(
            f"sync: message {len(checked) - 1} is from the assistant; the last one must ask for"
            " a turn"
        )
    checked = session._apply_specials(checked, session._turns)
    best, agreed, closest = None, 0, (0, 0)
    for segment in reversed(session._segments):
        found = _agreed(session, segment, checked)
        if found > closest:
            best, agreed, closest = segment, found[0], found
    if best is None:
        return session._open_segment(checked)
    if agreed == len(best.messages) and _answers(checked[agreed:]):
        return _extend(session, best, checked, agreed)
    return _leave(session, best, checked, agreed)


def _answers(messages: Messages) -> bool:
    return bool(messages) and all(message["role"] != "assistant" for message in messages)


def _agreed(session: Session, segment: Segment, messages: Messages) -> tuple[int, int]:
    """Leading messages that the segment holds, sampled turns by what they say, and how many of
    those turns say exactly that: of two turns of which one holds the other, the right one wins."""
    count = exact = 0
    for entry, message in zip(segment.messages, messages, strict=False):
        if isinstance(entry, Block):
            echo = _echoes(session, segment, entry, message)
            if echo == "no":
                break
            exact += echo == "exactly"
        elif entry is not message and not _same(entry, message):
            break
        count += 1
    return count, exact


def _same(left: Message, right: Message) -> bool:
    keys = ("role", "content", "tool_calls", "tool_call_id")
    return all((left.get(key) or None) == (right.get(key) or None) for key in keys)


def _echoes(
    session: Session, segment: Segment, block: Block, message: Message
) -> Literal["no", "in part", "exactly"]:
    """Whether an assistant message tells of the sampled turn.

    A client may drop reasoning, strip whitespace and parse tool calls, so its text has to stand in
    what was sampled, and so have the names of its calls.
    """
    if message["role"] != "assistant":
        return "no"
    turn = block.turn
    if turn is not None and turn.message is not None and _same(turn.message, message):
        return "exactly"
    text = session._profile.decode(segment.tokens, block.start, block.stop)
    content = message.get("content")
    calls = message.get("tool_calls") or []
    if isinstance(content, str):
        if content == text and not calls:
            return "exactly"
        if content.strip() not in text:
            return "no"
    names = [str(call.get("function", call).get("name", "")) for call in calls]
    told = all(name in text for name in names) and bool(content or calls or not text.strip())
    return "in part" if told else "no"


def _extend(
    session: Session, segment: Segment, messages: Messages, agreed: int
) -> IntArray | Overflow:
    """Go on with a segment whose history is the start of the messages."""
    block = segment.blocks[-1]
    if block.turn is None:
        # The history ends in a prompt: more messages came before the model answered.
        return _leave(session, segment, messages, agreed)
    saved = session._segment, session._turn, session._state, session._reasoned
    told = block.turn.message
    session._segment, session._turn, session._state = segment, block.turn, "open"
    session._reasoned = _reasoned(session, segment)
    if told is None and messages[agreed - 1].get("tool_calls"):
        block.turn.message = messages[agreed - 1]
    try:
        prompt = session._answer(segment, messages[agreed:])
    except Exception:
        session._segment, session._turn, session._state, session._reasoned = saved
        block.turn.message = told
        raise
    if isinstance(prompt, Overflow):
        session._segment, session._turn, session._state, session._reasoned = saved
        block.turn.message = told
    return prompt


def _reasoned(session: Session, segment: Segment) -> Reasoning:
    """Whether a turn before the last reasoned since the last user message."""
    found: Reasoning = "none"
    for entry in segment.messages[:-1]:
        if isinstance(entry, Block):
            state = session._profile.reasoning(segment.tokens, entry.start, entry.stop)
            found = state if found != "some" and state != "none" else found
        elif entry["role"] == "user":
            found = "none"
    return found


def _leave(
    session: Session, segment: Segment, messages: Messages, agreed: int
) -> IntArray | Overflow:
    """Take another way from the last prompt or turn that the messages agree with."""
    for mark in reversed(segment.marks):
        if mark.messages == agreed == len(messages):
            return _return_to(session, segment, mark)
        if mark.messages >= agreed:
            continue
        turn = segment.blocks[mark.blocks]
        answer = messages[mark.messages + 1 :]
        if turn.turn is None or not _answers(answer):
            break
        end = Mark(
            mark.messages + 1, turn.stop, turn.logprob + turn.stop - turn.start, mark.blocks + 1
        )
        branch = segment.branch(end, len(session._segments))
        return _answer_branch(session, branch, messages, end.messages)
    return session._open_segment(messages)


def _return_to(session: Session, segment: Segment, mark: Mark) -> IntArray | Overflow:
    """Ask again at a prompt that was recorded: the turns up to it are shared."""
    if mark.tokens == segment.tokens.size:
        session._enter(segment)
    else:
        branch = segment.branch(mark, len(session._segments))
        session._segments.append(branch)
        session._enter(branch)
    return session.prompt


def _answer_branch(
    session: Session, branch: Segment, messages: Messages, agreed: int
) -> IntArray | Overflow:
    session._segments.append(branch)
    try:
        prompt = _extend(session, branch, messages, agreed)
    except Exception:
        session._segments.remove(branch)
        raise
    if isinstance(prompt, Overflow):
        session._segments.remove(branch)
    return prompt


def ingest(
    session: Session,
    prompt_ids: Sequence[int] | ArrayLike,
    output_ids: Sequence[int] | ArrayLike,
    logprobs: Sequence[float] | ArrayLike,
    finish: Finish,
    message: Message | None,
) -> Ingest | Overflow:
    """See Session.ingest."""
    prompt = _checked_ids(prompt_ids, session)
    output = np.asarray(output_ids)
    if len(output) != len(np.asarray(logprobs)):
        raise LengthError(
            f"turn {session._turns}: {len(output)} ids but {len(np.asarray(logprobs))} log-probs;"
            " give one for each id"
        )
    needed = len(prompt) + len(output)
    if session.max_tokens is not None and needed > session.max_tokens:
        return Overflow(needed, session.max_tokens, session.max_tokens)
    best, agreed = None, -1
    for segment in reversed(session._segments):
        shared = common_prefix(segment.tokens.view(0, segment.tokens.size), prompt)
        if shared > agreed:
            best, agreed = segment, shared
    saved = _save(session)
    kind = _classify(best, agreed, prompt) if best is not None else "start"
    _place(session, best, agreed, prompt)
    session._blind = True
    try:
        result = session.append_sampled(output, logprobs, finish, message=message)
    except Exception:
        _restore(session, saved)
        raise
    assert result is None, "the budget was checked above"
    number = session._current("ingest").number
    return Ingest(kind, max(agreed, 0), number, session._turns - 1)


def _checked_ids(ids: Any, session: Session) -> IntArray:
    array = np.asarray(ids)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise TokenIdError(
            f"turn {session._turns}: the prompt must be a list of ids, got shape {array.shape} of"
            f" {array.dtype}"
        )
    limit = session._profile.vocab_size or int(np.iinfo(np.int32).max)
    wrong = np.flatnonzero((array < 0) | (array >= limit))
    if len(wrong):
        index = int(wrong[0])
        raise TokenIdError(
            f"turn {session._turns}: prompt id {int(array[index])} at index {index} is not in"
            f" 0..{limit - 1}"
        )
    return array.astype(np.int32)


def _classify(
    segment: Segment, agreed: int, prompt: IntArray
) -> Literal["clean", "overlap", "drift", "fork"]:
    if agreed == segment.tokens.size:
        return "clean"
    if agreed == len(prompt):
        return "overlap"
    block = next(b for b in segment.blocks if b.start <= agreed < b.stop)
    return "drift" if block.turn is not None else "fork"


def _place(session: Session, segment: Segment | None, agreed: int, prompt: IntArray) -> None:
    """Make a segment current whose ids are the prompt, sharing what agrees."""
    if segment is None or agreed < segment.marks[0].tokens:
        target = Segment(Tokens(len(prompt) * 5 // 4 + 256), len(session._segments))
        target.append_context(prompt, "prompt", session._turns)
        session._segments.append(target)
    elif agreed == segment.tokens.size:
        target = segment
        if agreed < len(prompt):
            target.append_context(prompt[agreed:], "environment", session._turns)
    else:
        target = _shared(segment, agreed, len(session._segments))
        if target.tokens.size < len(prompt):
            rest = prompt[target.tokens.size :]
            target.append_context(rest, "environment", session._turns)
        session._segments.append(target)
    session._enter(target)


def _shared(segment: Segment, agreed: int, number: int) -> Segment:
    """A new segment with the whole blocks of the first `agreed` tokens."""
    count = sum(1 for block in segment.blocks if block.stop <= agreed)
    blocks = segment.blocks[:count]
    size = blocks[-1].stop
    sampled = sum(block.stop - block.start for block in blocks if block.turn is not None)
    messages = 0
    for mark in segment.marks:
        if mark.tokens <= size:
            messages = mark.messages
    return segment.branch(Mark(messages, size, sampled, count), number)


_Saved = tuple[Any, ...]


def _save(session: Session) -> _Saved:
    current = session._segment
    return (
        current,
        session._turn,
        session._state,
        session._reasoned,
        len(session._segments),
        [
            (segment, segment.tokens.size, segment.tokens.sampled, len(segment.blocks))
            for segment in session._segments
        ],
    )


def _restore(session: Session, saved: _Saved) -> None:
    """Undo what `_place` did."""
    session._segment, session._turn, session._state, session._reasoned, count, sizes = saved
    del session._segments[count:]
    for segment, size, sampled, blocks in sizes:
        if segment.tokens.size != size:
            segment.tokens.truncate(size, sampled)
            del segment.blocks[blocks:]
            while segment.marks and segment.marks[-1].tokens > size:
                segment.marks.pop()

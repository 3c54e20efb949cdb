"""From a sampled turn to the next prompt: continuation, stop token, rewrite or fork."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendelta.continuation import contents, environment_kind
from tokendelta.errors import RewriteError
from tokendelta.findings import Change
from tokendelta.probes import BLANK_KINDS, THINK_KINDS, EnvKind, Messages, TurnKind
from tokendelta.sample import Drop, IntArray, Overflow, Rewrite
from tokendelta.segment import Segment

if TYPE_CHECKING:
    from tokendelta.profile import Reasoning
    from tokendelta.session import Session

_KINDS: dict[tuple[Reasoning, bool], TurnKind] = {
    ("none", False): "text",
    ("blank", False): "blank",
    ("some", False): "think",
    ("none", True): "call",
    ("blank", True): "blank_call",
    ("some", True): "think_call",
}


def answer(session: Session, segment: Segment, messages: Messages) -> IntArray | Overflow:
    """Append checked environment messages to the segment, or fork from it.

    Where the profile knows one literal continuation for all turns, which rewrites nothing, neither
    the turn nor the history is looked at.
    """
    profile = session._profile
    env = environment_kind(messages)
    rewrite: Rewrite | None = None
    kind: TurnKind | None = None
    ids: list[int] | None = None
    uniform = profile.uniform.get(env)
    if uniform is not None and session.specials != "escape":
        texts = contents(messages)
        if texts is not None and not profile.findings.guarded(texts):
            ids = uniform.encode(texts)
    if ids is None:
        kind = _turn_kind(session, segment, env)
        rewrite = _rewrite(session, segment, kind, env, messages)
        if rewrite is not None and session.on_rewrite == "fork" and rewrite.certain:
            return _fork(session, segment, messages, rewrite)
        ids = profile.continuations.ids(
            kind,
            lambda: session._messages(segment),
            messages,
            session._tools,
            broken=session.specials == "escape",
            frozen=rewrite is not None and "history" in rewrite.where,
        )
    overflow = _append(session, segment, ids)
    if overflow is not None:
        return overflow
    if rewrite is not None:
        session.rewrites.append(rewrite)
    if kind is not None:
        session._reasoned = _reasoned_after(session._reasoned, kind)
    if env == "user" or (env == "mixed" and any(m["role"] == "user" for m in messages)):
        session._reasoned = "none"
    segment.messages.extend(messages)
    segment.mark()
    tokens = segment.tokens
    return tokens.view(0, tokens.size)


def _reasoned_after(before: Reasoning, kind: TurnKind) -> Reasoning:
    if kind in THINK_KINDS:
        return "some"
    return "blank" if kind in BLANK_KINDS and before == "none" else before


def _append(session: Session, segment: Segment, ids: list[int]) -> Overflow | None:
    """Append a continuation, letting a sampled stop token stand for the template's own."""
    profile, tokens, turn = session._profile, segment.tokens, session._turn
    skip, replaced, other_stop = 0, 0, False
    block = segment.blocks[-1]
    if turn is not None and block.turn is turn and ids:
        last = tokens[-1]
        if block.stop > block.start and last in profile.stop_ids:
            if ids[0] == last:
                skip = 1
            elif profile.findings.stop_style == "header" and ids[0] in profile.stop_ids:
                replaced = int(last in profile.header_stop_ids)
            else:
                skip = int(ids[0] in profile.stop_ids)
                other_stop = True
        elif turn.finish != "stop":
            ids = _closing_ids(session, segment) + ids
    needed = len(ids) - skip - replaced
    if session.max_tokens is not None and tokens.size + needed > session.max_tokens:
        return Overflow(needed, session.max_tokens - tokens.size, session.max_tokens)
    if replaced:
        _drop_header(session, segment)
    if other_stop:
        session.rewrites.append(Rewrite(session._turns, "stop", True))
    segment.append_context(ids, "environment", session._turns, skip)
    return None


def _drop_header(session: Session, segment: Segment) -> None:
    """Take back a sampled stop token that is the header of another message than came."""
    block = segment.blocks[-1]
    segment.tokens.truncate(segment.tokens.size - 1, segment.tokens.sampled - 1)
    block.stop -= 1
    session._dropped.append(Drop(block.number, segment.number, 1, "header replaced"))


def _closing_ids(session: Session, segment: Segment) -> list[int]:
    """Ids that close a reasoning block which a cut turn left open."""
    profile, block = session._profile, segment.blocks[-1]
    opening, closing = profile.findings.reasoning_open.strip(), profile.findings.reasoning_close
    if not closing or not opening:
        return []
    if profile.reasoning(segment.tokens, block.start, block.stop) != "none":
        return []
    # The generation prompt may have opened the block, so look a little before the turn.
    start = max(block.start - len(profile.header_ids), 0)
    ids = segment.tokens.view(start, block.stop).tolist()
    text = str(profile.tokenizer.decode(ids, skip_special_tokens=False))
    at = text.rfind(opening)
    if at < 0 or closing.strip() in text[at:]:
        return []
    return profile.encoder.encode(closing)


def _turn_kind(session: Session, segment: Segment, env: EnvKind) -> TurnKind:
    block = segment.blocks[-1]
    if block.turn is None:
        return "text"
    message = block.turn.message
    reasoning = session._profile.reasoning(segment.tokens, block.start, block.stop)
    calls = env == "tool" if message is None else bool(message.get("tool_calls"))
    return _KINDS[(reasoning, calls)]


def _rewrite(
    session: Session, segment: Segment, kind: TurnKind, env: EnvKind, messages: Messages
) -> Rewrite | None:
    """What the template rewrites at this answer, by rendering unless history is kept anyway.

    Raises RewriteError by policy.
    """
    findings = session._profile.findings
    texts = contents(messages)
    guarded = texts is None or findings.guarded(texts)
    change = _change(session, kind, env)
    place: str | None
    certain = True
    if kind in THINK_KINDS and _reasoning_untold(session, segment):
        place = "turn"
    elif change.effect == "append" and (not guarded or session.on_rewrite == "keep"):
        return None
    elif session.on_rewrite == "keep":
        place = ", ".join(change.where) or "not established"
        certain = change.effect == "rewrite" and not guarded
    else:
        history = session._messages(segment)
        place = session._profile.continuations.rewritten(kind, history, messages, session._tools)
    if place is None:
        return None
    if session.on_rewrite == "error":
        raise RewriteError(
            f"before turn {session._turns}: the template rewrites the {place} when"
            f" {[message['role'] for message in messages]} follow a turn of kind {kind}"
        )
    return Rewrite(session._turns, place, certain)


def _change(session: Session, kind: TurnKind, env: EnvKind) -> Change:
    findings = session._profile.findings
    change = findings.change(kind, session._reasoned == "some", env)
    if session._reasoned == "blank" and change != findings.change(kind, True, env):
        # Empty reasoning blocks further back were not audited on their own.
        return Change("mixed", ("history",))
    return change


def _reasoning_untold(session: Session, segment: Segment) -> bool:
    """Whether the turn was given as a message that leaves out the reasoning in its ids."""
    turn = segment.blocks[-1].turn
    if turn is None or turn.message is None:
        return False
    findings = session._profile.findings
    content = turn.message.get("content")
    marker = findings.reasoning_close.strip() or "</think>"
    inline = isinstance(content, str) and marker in content
    return not inline and not turn.message.get(findings.reasoning_field)


def _fork(
    session: Session, segment: Segment, messages: Messages, rewrite: Rewrite
) -> IntArray | Overflow:
    prompt = session._open_segment([*session._messages(segment), *messages])
    if not isinstance(prompt, Overflow):
        session.rewrites.append(rewrite)
    return prompt

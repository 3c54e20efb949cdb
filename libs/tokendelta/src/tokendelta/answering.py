"""From a sampled turn to the next prompt: continuation, stop token, rewrite or fork."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendelta.continuation import contents, environment_kind
from tokendelta.errors import RewriteError
from tokendelta.findings import Change
from tokendelta.probes import BLANK_KINDS, THINK_KINDS, EnvKind, Messages, TurnKind
from tokendelta.sample import IntArray, Overflow, Rewrite
from tokendelta.state import SessionState

if TYPE_CHECKING:
    from tokendelta.profile import Reasoning

_KINDS: dict[tuple[Reasoning, bool], TurnKind] = {
    ("none", False): "text",
    ("blank", False): "blank",
    ("some", False): "think",
    ("none", True): "call",
    ("blank", True): "blank_call",
    ("some", True): "think_call",
}


def answer(state: SessionState, messages: Messages) -> IntArray | Overflow:
    """Append checked environment messages to the current segment, or fork from it.

    Where the profile knows one literal continuation for all turns, which rewrites nothing, neither
    the turn nor the history is looked at. Whatever is raised leaves the state as it was.
    """
    record, segment = state.record, state.current("answer")
    profile = record.profile
    env = environment_kind(messages)
    rewrite: Rewrite | None = None
    kind: TurnKind | None = None
    ids: list[int] | None = None
    uniform = profile.uniform.get(env)
    if uniform is not None and record.specials != "escape":
        texts = contents(messages)
        if texts is not None and not profile.findings.guarded(texts):
            ids = uniform.encode(texts)
    if ids is None:
        kind = _turn_kind(state, env)
        rewrite = _rewrite(state, kind, env, messages)
        if rewrite is not None and record.on_rewrite == "fork" and rewrite.certain:
            return _fork(state, messages, rewrite)
        ids = profile.continuations.ids(
            kind,
            state.messages,
            messages,
            state.tools,
            broken=record.specials == "escape",
            frozen=rewrite is not None and "history" in rewrite.where,
        )
    overflow = _append(state, ids)
    if overflow is not None:
        return overflow
    if rewrite is not None:
        record.rewrites.append(rewrite)
    reasoned = state.reasoned if kind is None else _reasoned_after(state.reasoned, kind)
    segment.messages.extend(messages)
    state.enter(segment)
    if env == "tool" or all(message["role"] != "user" for message in messages):
        state.reasoned = reasoned
    return state.prompt()


def _reasoned_after(before: Reasoning, kind: TurnKind) -> Reasoning:
    if kind in THINK_KINDS:
        return "some"
    return "blank" if kind in BLANK_KINDS and before == "none" else before


def _append(state: SessionState, ids: list[int]) -> Overflow | None:
    """Append a continuation, letting a sampled stop token stand for the template's own."""
    record, segment, turn = state.record, state.current("answer"), state.turn
    profile, tokens = record.profile, segment.tokens
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
            ids = _closing_ids(state) + ids
    overflow = record.overflow(len(ids) - skip - replaced, tokens.size)
    if overflow is not None:
        return overflow
    if replaced:
        segment.drop_last()
    if other_stop:
        record.rewrites.append(Rewrite(record.turns, "stop", True))
    segment.append_context(ids, "environment", record.turns, skip)
    return None


def _closing_ids(state: SessionState) -> list[int]:
    """Ids that close a reasoning block which a cut turn left open."""
    profile, segment = state.record.profile, state.current("answer")
    block = segment.blocks[-1]
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


def _turn_kind(state: SessionState, env: EnvKind) -> TurnKind:
    segment = state.current("answer")
    block = segment.blocks[-1]
    if block.turn is None:
        return "text"
    message = block.turn.message
    reasoning = state.record.profile.reasoning(segment.tokens, block.start, block.stop)
    calls = env == "tool" if message is None else bool(message.get("tool_calls"))
    return _KINDS[(reasoning, calls)]


def _rewrite(
    state: SessionState, kind: TurnKind, env: EnvKind, messages: Messages
) -> Rewrite | None:
    """What the template rewrites at this answer, by rendering unless history is kept anyway.

    Raises RewriteError by policy.
    """
    record = state.record
    findings = record.profile.findings
    texts = contents(messages)
    guarded = texts is None or findings.guarded(texts)
    change = _change(state, kind, env)
    place: str | None
    certain = True
    if kind in THINK_KINDS and _reasoning_untold(state):
        place = "turn"
    elif change.effect == "append" and (not guarded or record.on_rewrite == "keep"):
        return None
    elif record.on_rewrite == "keep":
        place = ", ".join(change.where) or "not established"
        certain = change.effect == "rewrite" and not guarded
    else:
        place = record.profile.continuations.rewritten(
            kind, state.messages(), messages, state.tools
        )
    if place is None:
        return None
    if record.on_rewrite == "error":
        raise RewriteError(
            f"before turn {record.turns}: the template rewrites the {place} when"
            f" {[message['role'] for message in messages]} follow a turn of kind {kind}"
        )
    return Rewrite(record.turns, place, certain)


def _change(state: SessionState, kind: TurnKind, env: EnvKind) -> Change:
    findings = state.record.profile.findings
    change = findings.change(kind, state.reasoned == "some", env)
    if state.reasoned == "blank" and change != findings.change(kind, True, env):
        # Empty reasoning blocks further back were not audited on their own.
        return Change("mixed", ("history",))
    return change


def _reasoning_untold(state: SessionState) -> bool:
    """Whether the turn was given as a message that leaves out the reasoning in its ids."""
    turn = state.current("answer").blocks[-1].turn
    if turn is None or turn.message is None:
        return False
    findings = state.record.profile.findings
    content = turn.message.get("content")
    marker = findings.reasoning_close.strip() or "</think>"
    inline = isinstance(content, str) and marker in content
    return not inline and not turn.message.get(findings.reasoning_field)


def _fork(state: SessionState, messages: Messages, rewrite: Rewrite) -> IntArray | Overflow:
    prompt = state.start([*state.messages(), *messages])
    if not isinstance(prompt, Overflow):
        state.record.rewrites.append(rewrite)
    return prompt

"""From a sampled turn to the next prompt: continuation, stop token, rewrite or fork."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendelta.continuation import contents, environment_kind
from tokendelta.errors import RewriteError
from tokendelta.findings import Change
from tokendelta.probes import THINK_KINDS, EnvKind, Messages, TurnKind
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
    notes: list[Rewrite] = []
    ids: list[int] | None = None
    uniform = profile.uniform.get(env)
    if uniform is not None and record.specials != "escape":
        texts = contents(messages)
        if texts is not None and not profile.findings.guarded(texts):
            ids = uniform.encode(texts)
    if ids is None:
        kind = _turn_kind(state, env)
        notes = _missed_message(state, kind, env, messages)
        rewrite = _rewrite(state, kind, env, messages)
        if rewrite is not None:
            notes.append(rewrite)
            if record.on_rewrite == "fork" and rewrite.certain:
                return _fork(state, messages, notes)
        ids = profile.continuations.ids(
            kind,
            state.messages,
            messages,
            state.tools,
            broken=record.specials == "escape",
            frozen=rewrite is not None and "history" in rewrite.where,
        )
    reasoned = _reasoned_after(state, messages)
    overflow = _append(state, ids)
    if overflow is not None:
        return overflow
    record.rewrites.extend(notes)
    segment.messages.extend(messages)
    state.enter(segment)
    state.reasoned = reasoned
    return state.prompt()


def _reasoned_after(state: SessionState, messages: Messages) -> Reasoning:
    """Whether a turn has reasoned since the last user message, once these messages have come."""
    profile, segment = state.record.profile, state.current("answer")
    if not profile.recalls_reasoning or any(message["role"] == "user" for message in messages):
        return "none"
    block = segment.blocks[-1]
    reasoning = profile.reasoning(segment.tokens, block.start, block.stop)
    if reasoning == "some" or state.reasoned == "none":
        return reasoning
    return state.reasoned


def _append(state: SessionState, ids: list[int]) -> Overflow | None:
    """Append a continuation, but for what the turn has sampled of its ending."""
    record, segment, turn = state.record, state.current("answer"), state.turn
    profile, tokens = record.profile, segment.tokens
    skip, replaced, other_ending = 0, 0, False
    block = segment.blocks[-1]
    if turn is not None and block.turn is turn and ids:
        last = tokens[-1]
        stopped = block.stop > block.start and last in profile.stop_ids
        if stopped and ids[0] == last:
            skip = 1
        elif stopped and last in profile.header_stop_ids:
            replaced = 1
        elif stopped and ids[0] in profile.header_stop_ids:
            other_ending = profile.findings.stop_style != "header"
        elif stopped:
            skip, other_ending = _sampled_ending(state, ids)
        else:
            skip = _begun_ending(state, ids)
            if turn.finish != "stop" and not skip:
                ids = _closing_ids(state) + ids
    overflow = record.overflow(len(ids) - skip - replaced, tokens.size)
    if overflow is not None:
        return overflow
    if replaced:
        segment.drop_last()
    if other_ending:
        record.rewrites.append(Rewrite(record.turns, "stop", True))
    segment.append_context(ids, "environment", record.turns, skip)
    return None


def _sampled_ending(state: SessionState, ids: list[int]) -> tuple[int, bool]:
    """Ids of the template's ending that a sampled stop token stands for, and whether the template
    ends the turn in another way: with another token, or with more before it."""
    profile = state.record.profile
    at = _own_stop(state, ids)
    if at is None:
        return 0, True
    same = ids[at] == state.current("answer").tokens[-1]
    begun = not at or _sampled_text(state, at, 1).endswith(profile.text_of(ids[:at]))
    return at + 1, not (same and begun)


def _begun_ending(state: SessionState, ids: list[int]) -> int:
    """Ids of the template's ending that a turn without a stop token sampled before it was cut."""
    at = _own_stop(state, ids)
    if not at:
        return 0
    text, profile = _sampled_text(state, at, 0), state.record.profile
    return next((n for n in range(at, 0, -1) if text.endswith(profile.text_of(ids[:n]))), 0)


def _own_stop(state: SessionState, ids: list[int]) -> int | None:
    """The place of the template's own stop token in a continuation."""
    profile = state.record.profile
    return next(
        (i for i, t in enumerate(ids[: profile.ending_size]) if t in profile.stop_ids), None
    )


def _sampled_text(state: SessionState, count: int, skip: int) -> str:
    """The end of the sampled text in which so many ids of an ending are, without the last `skip`.
    Sampled text may merge with an ending, so ids are not compared."""
    segment = state.current("answer")
    block = segment.blocks[-1]
    start = max(block.start, block.stop - skip - 2 * count - 4)
    return state.record.profile.text_of(segment.tokens.view(start, block.stop - skip).tolist())


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
    text = profile.text_of(ids)
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


def _missed_message(
    state: SessionState, kind: TurnKind, env: EnvKind, messages: Messages
) -> list[Rewrite]:
    """A note where the template looks into a turn that was not given as a message: at the names and
    ids of its calls, or at reasoning that it treats otherwise when it stands in the text.

    Raises RewriteError by policy.
    """
    record, turn = state.record, state.current("answer").blocks[-1].turn
    if turn is None or turn.message is not None:
        return []
    reads_calls = record.profile.findings.reads_calls and any(m["role"] == "tool" for m in messages)
    if not reads_calls and (kind not in THINK_KINDS or _change(state, kind, env).effect != "mixed"):
        return []
    if record.on_rewrite == "error":
        raise RewriteError(
            f"before turn {record.turns}: the template looks into the turn before it; give"
            " append_sampled the turn as `message`, with its tool calls and its reasoning"
        )
    return [Rewrite(record.turns, "message", False)]


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


def _fork(state: SessionState, messages: Messages, notes: list[Rewrite]) -> IntArray | Overflow:
    prompt = state.start([*state.messages(), *messages])
    if not isinstance(prompt, Overflow):
        state.record.rewrites.extend(notes)
    return prompt

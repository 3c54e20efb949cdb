"""Runs a conversation through a session and checks every prompt against full renders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chat_tokenizer import ChatTokenizer, ends_of
from conversations import CONVERSATIONS, Conversation, Step, steps
from tokendelta import Profile, Session
from tokendelta.probes import TOOLS

FOLDER = Path(os.environ.get("TURNWISE_SHARED_DATA", "")) / "templates"
TEMPLATES = (
    sorted(path.stem for path in FOLDER.glob("*.jinja"))
    if os.environ.get("TURNWISE_SHARED_DATA") and FOLDER.is_dir()
    else []
)


def load_template(name: str) -> ChatTokenizer:
    """A template of the shared data with a small vocabulary and its own special tokens."""
    bos, eos = ends_of(name)
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTokenizer(template, bos=bos, eos=eos)


def drive(
    tokenizer: Any, profile: Profile, conversation: Conversation, on_rewrite: Any
) -> Iterator[tuple[Session, Step, list[int], list[int]]]:
    """The session, the step, and the ids before and after, for each answered turn."""
    session = Session(profile, tools=TOOLS if conversation.tools else [], on_rewrite=on_rewrite)
    messages = conversation.messages
    first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
    turns = steps(tokenizer, conversation)
    if not turns:
        return
    prompt = session.start(messages[:first]).tolist()
    assert prompt == tokenizer.encode(turns[0].prompt)
    for step in turns:
        ids, _ = sampled_ids(tokenizer, step)
        session.append_sampled(ids, [-0.5] * len(ids), message=step.message)
        if not step.answer:
            return
        before = session.prompt.tolist()
        yield session, step, before, session.append_env(step.answer).tolist()


def sampled_ids(tokenizer: Any, step: Step) -> tuple[list[int], bool]:
    """The ids of a sampled text in its place, and whether a full render has them too.

    It has not where the text merges with the end of its prompt.
    """
    prompt, both = tokenizer.encode(step.prompt), tokenizer.encode(step.prompt + step.sampled)
    if both[: len(prompt)] == prompt:
        return both[len(prompt) :], True
    return tokenizer.encode(step.sampled), False


def check_kept(tokenizer: Any, profile: Profile) -> int:
    """Every prompt is the full render, or differs by what is reported. Returns the turns seen."""
    seen = 0
    for conversation in CONVERSATIONS:
        diverged = False
        for session, step, before, prompt in drive(tokenizer, profile, conversation, "keep"):
            seen += 1
            diverged = diverged or not sampled_ids(tokenizer, step)[1]
            expected = tokenizer.encode(step.after)
            reports = [r for r in session.rewrites if r.turn == session.turns]
            assert prompt[: len(before)] == before
            if prompt == expected:
                false = [r for r in reports if r.certain and r.where != "stop"]
                assert not false, f"{conversation.name}: {false}"
                continue
            appended = prompt[len(before) :]
            if any("history" in report.where for report in reports):
                text = tokenizer.decode(appended)
                assert all(str(m["content"]).strip() in text for m in step.answer)
            elif expected[-len(appended) :] != appended:
                # Without a special token at the seam, a merge across it is not to be had.
                assert profile.findings.stop_style == "none", f"{conversation.name}: wrong delta"
                assert step.after.endswith(tokenizer.decode(appended))
            assert diverged or reports, f"{conversation.name}: silent difference"
            diverged = True
    return seen


def check_forked(tokenizer: Any, profile: Profile) -> int:
    """With forks, every prompt is the full render to the id. Returns the turns seen."""
    seen = 0
    for conversation in CONVERSATIONS:
        session = None
        sampled = 0
        for session, step, _, prompt in drive(tokenizer, profile, conversation, "fork"):
            ids, canonical = sampled_ids(tokenizer, step)
            sampled += len(ids)
            if not canonical:
                break
            if any(rewrite.where == "stop" for rewrite in session.rewrites):
                break
            seen += 1
            assert prompt == tokenizer.encode(step.after), conversation.name
        if session is None:
            continue
        result = session.samples()
        assert abs(sum(sample.weight for sample in result.samples) - 1) < 1e-9
        trained = sum(sample.trained_tokens for sample in result.samples)
        assert trained + sum(drop.tokens for drop in result.dropped) == sampled
    return seen

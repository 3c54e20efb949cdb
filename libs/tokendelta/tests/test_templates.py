"""Every template of the shared data, on every conversation, against full renders."""

import os
from pathlib import Path

import pytest
from chat_tokenizer import ChatTokenizer, ends_of
from conversations import CONVERSATIONS, steps
from tokendelta import Profile, Session, TemplateError
from tokendelta.probes import TOOLS

FOLDER = Path(os.environ.get("TURNWISE_SHARED_DATA", "")) / "templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja")) if FOLDER.is_dir() else []

pytestmark = pytest.mark.skipif(not NAMES, reason="TURNWISE_SHARED_DATA is not set")


def load(name: str) -> ChatTokenizer:
    bos, eos = ends_of(name)
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTokenizer(template, bos=bos, eos=eos)


def drive(tokenizer, profile, conversation, on_rewrite):
    """Run a conversation, yielding (session, step, prompt before, prompt after) for each turn."""
    session = Session(profile, tools=TOOLS if conversation.tools else [], on_rewrite=on_rewrite)
    first = next(i for i, m in enumerate(conversation.messages) if m["role"] == "assistant")
    turns = steps(tokenizer, conversation)
    if not turns:
        return
    prompt = session.start(conversation.messages[:first]).tolist()
    assert prompt == tokenizer.encode(turns[0].prompt)
    for step in turns:
        ids = tokenizer.encode(step.sampled)
        session.append_sampled(ids, [-0.5] * len(ids), message=step.message)
        if not step.answer:
            return
        before = session.prompt.tolist()
        prompt = session.append_env(step.answer).tolist()
        yield session, step, before, prompt


@pytest.mark.parametrize("name", NAMES)
def test_kept_ids_equal_the_full_render_or_the_rewrite_is_reported(name) -> None:
    tokenizer = load(name)
    profile = Profile.from_tokenizer(tokenizer)
    seen = 0
    for conversation in CONVERSATIONS:
        diverged = False
        for session, step, before, prompt in drive(tokenizer, profile, conversation, "keep"):
            seen += 1
            expected = tokenizer.encode(step.after)
            turn = session.turns
            reports = [r for r in session.rewrites if r.turn == turn]
            assert prompt[: len(before)] == before or any(r.where == "stop" for r in reports)
            if prompt == expected:
                assert not any(r.certain and r.where != "stop" for r in reports), (
                    f"{conversation.name}: {reports}"
                )
                continue
            appended = prompt[len(before) :]
            if expected[-len(appended) :] != appended:
                # Without a special token at the seam, a merge across it is not to be had.
                assert profile.findings.stop_style == "none", f"{conversation.name}: wrong delta"
                assert step.after.endswith(tokenizer.decode(appended))
            assert diverged or reports, f"{conversation.name}: silent difference"
            diverged = True
    assert seen >= 12


@pytest.mark.parametrize("name", NAMES)
def test_a_fork_gives_exactly_what_the_engine_would_be_sent(name) -> None:
    tokenizer = load(name)
    profile = Profile.from_tokenizer(tokenizer)
    for conversation in CONVERSATIONS:
        session = None
        for session, step, _, prompt in drive(tokenizer, profile, conversation, "fork"):
            expected = tokenizer.encode(step.after)
            if any(r.where == "stop" for r in session.rewrites):
                break
            assert prompt == expected, conversation.name
        if session is None:
            continue
        result = session.samples()
        trained = sum(sample.trained_tokens for sample in result.samples)
        assert abs(sum(sample.weight for sample in result.samples) - 1) < 1e-9
        assert trained + sum(drop.tokens for drop in result.dropped) > 0


@pytest.mark.parametrize("name", NAMES)
def test_conversations_that_a_template_refuses_are_typed_errors(name) -> None:
    tokenizer = load(name)
    profile = Profile.from_tokenizer(tokenizer)
    session = Session(profile)
    try:
        session.start([{"role": "system", "content": "Only a system message."}])
    except TemplateError:
        assert session.segments == 0

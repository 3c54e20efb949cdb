import json
import os
from random import Random
from typing import Any

import miniatures
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from request_trees import play
from tokendelta import Overflow, Profile, Ticket, TokenDeltaError, Tree

ROLLOUTS = int(os.environ.get("TOKENDELTA_CONVERSATIONS", "2000"))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_random_programs_get_the_prompts_of_the_oracle(rnd) -> None:
    play(rnd)


def test_many_random_programs_get_the_prompts_of_the_oracle() -> None:
    assert sum(play(Random(seed)) for seed in range(ROLLOUTS)) > ROLLOUTS


def test_known_messages_change_no_decision() -> None:
    """Programs of few words, so that many turns and histories say the same."""
    profile = Profile.from_tokenizer(miniatures.load("append-only"))
    tools = [{"type": "function", "function": {"name": "look"}}]
    for seed in range(300):
        rnd = Random(seed)
        knowing, plain = Tree(profile), Tree(profile)
        known: dict[str, Any] = {}
        lines: list[list[dict[str, Any]]] = [[]]
        pending: list[tuple[list[dict[str, Any]], Ticket, Ticket]] = []
        for _ in range(25):
            if pending and rnd.random() < 0.6:
                history, one, other = pending.pop(rnd.randrange(len(pending)))
                said = {"role": "assistant", "content": rnd.choice("XY")}
                if one.decision != "replay" and one.status == "open":
                    ids = profile.encoder.encode(said["content"])
                    for tree, ticket in ((knowing, one), (plain, other)):
                        tree.commit(ticket, ids, [-1.0] * len(ids), message=said)
                        if len(lines) % 4:
                            tree.delivered(ticket)
                    lines.append([*history, said])
                continue
            history = list(rnd.choice(lines[-4:] + lines[:1]))
            history += [{"role": "user", "content": rnd.choice("ab")}] * rnd.choice([1, 1, 1, 2])
            given = [known.setdefault(json.dumps(m), knowing.known(m)) for m in history]
            asked = {"tools": rnd.choice([None, None, tools]), "retry": rnd.random() < 0.1}
            one, other = knowing.prepare(given, **asked), plain.prepare(history, **asked)
            assert isinstance(one, Ticket) and isinstance(other, Ticket)
            assert facts(one) == facts(other), seed
            pending.append((history, one, other))
            if rnd.random() < 0.3:
                lines.append(history)
        assert [s.ids.tolist() for s in knowing.samples().samples] == [
            s.ids.tolist() for s in plain.samples().samples
        ]


def facts(ticket: Ticket) -> list[Any]:
    slot = ticket.slot
    base = None if slot.base is None else slot.base.number
    prompt = ticket.prompt.tolist() if slot.prompt >= 0 else None
    return [ticket.decision, ticket.cause, ticket.turn, ticket.agreed, slot.segment.number, base,
            prompt]  # fmt: skip


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "function", "name", "text"]), inner, max_size=3)
    ),
    max_leaves=5,
)
CALLS = st.lists(
    st.fixed_dictionaries({}, optional={"id": JSON, "function": JSON, "type": JSON}) | JSON,
    max_size=2,
)
KEYS = {
    "role": st.sampled_from(["user", "assistant", "tool", "system", "robot"]) | JSON,
    "content": st.text(st.characters(), max_size=4) | JSON,
}
OPTIONAL = {"tool_calls": CALLS | JSON, "tool_call_id": JSON, "reasoning_content": JSON}
MESSAGES = st.fixed_dictionaries(KEYS, optional=OPTIONAL) | JSON
SAID = st.fixed_dictionaries({"role": st.just("assistant"), "content": JSON}, optional=OPTIONAL)
LAST = st.fixed_dictionaries({"role": st.just("user"), "content": st.text(max_size=3)})


@settings(max_examples=400, deadline=None)
@given(st.lists(MESSAGES, max_size=3), st.lists(SAID, max_size=2), LAST)
def test_no_history_raises_anything_but_a_typed_error(first, said, last) -> None:
    profile = Profile.from_tokenizer(miniatures.load("looks up calls"))
    tree = Tree(profile)
    opening = tree.prepare([{"role": "user", "content": "Hello."}])
    assert isinstance(opening, Ticket)
    call = {"id": "h1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    sent = {"role": "assistant", "content": "x", "tool_calls": [call]}
    own = {**sent, "tool_calls": [{**call, "id": "c1"}]}
    tree.commit(opening, [5, 6], [-0.5, -0.5], message=sent, own=own)
    for history in ([*first, last], [{"role": "user", "content": "Hello."}, *said, last]):
        before = tree.segments
        try:
            ticket = tree.prepare(history)
        except TokenDeltaError:
            assert tree.segments == before
        else:
            assert isinstance(ticket, Ticket | Overflow)


def test_half_a_character_is_a_typed_error_that_names_the_message() -> None:
    tree = Tree(Profile.from_tokenizer(miniatures.load("append-only")))
    with pytest.raises(TokenDeltaError, match="lone surrogate.* at character 4"):
        tree.prepare([{"role": "user", "content": "cut \ud83d here"}])
    with pytest.raises(TokenDeltaError, match="nested too deeply"):
        deep: list[object] = []
        for _ in range(100_000):
            deep = [deep]
        tree.prepare([{"role": "user", "content": deep}])
    with pytest.raises(TokenDeltaError, match="tools is nested too deeply"):
        tree.prepare([{"role": "user", "content": "x"}], tools=deep)  # type: ignore[arg-type]
    assert tree.segments == 0

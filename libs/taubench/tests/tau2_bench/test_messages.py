"""Messages as a model writes them and as upstream's files hold them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taubench.tau2 import Call, Message, calls_from, messages_from_json, messages_to_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


def test_arguments_come_as_an_object_or_as_its_text() -> None:
    assert calls_from([("a", {"x": 1}), ("b", '{"y": 2}'), ("c", None), ("d", " ")]) == (
        Call("a", {"x": 1}),
        Call("b", {"y": 2}),
        Call("c"),
        Call("d"),
    )


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (("a", "{"), "the arguments of a are not JSON"),
        (("a", "[1]"), "the arguments of a must be a JSON object, got list"),
        ((7, {}), "a tool's name must be a string, got int"),
    ],
)
def test_a_call_that_cant_be_made_says_why(pair: tuple[object, object], message: str) -> None:
    (call,) = calls_from([pair])
    assert (call.error or "").startswith(message)


def test_the_parsers_error_is_a_call_only_where_none_was_read() -> None:
    assert calls_from([], ["bad", "worse"]) == (Call("", error="bad"),)
    assert calls_from([("a", {})], ["bad"]) == (Call("a"),)
    assert calls_from([]) == ()


@given(st.lists(st.tuples(JSON, JSON), max_size=4))
def test_whatever_a_model_wrote_becomes_calls(pairs: list[tuple[object, object]]) -> None:
    assert len(calls_from(pairs)) == len(pairs)


@given(
    st.lists(
        st.builds(
            Message,
            role=st.just("assistant"),
            content=st.none() | st.text(max_size=5),
            calls=st.lists(
                st.builds(Call, st.text(max_size=3), st.dictionaries(st.text(max_size=2), JSON)),
                max_size=2,
            ).map(tuple),
        )
        | st.builds(
            Message,
            role=st.just("tool"),
            content=st.text(max_size=5),
            id=st.text(max_size=2),
            side=st.sampled_from(["assistant", "user"]),
            error=st.booleans(),
        ),
        max_size=5,
    )
)
def test_a_history_survives_the_way_through_a_file(history: list[Message]) -> None:
    assert list(messages_from_json(messages_to_json(history))) == history


def test_results_that_a_file_holds_together_become_single_ones() -> None:
    rows = [
        {
            "role": "tool",
            "tool_messages": [
                {"role": "tool", "id": "1", "content": "a", "requestor": "user"},
                {"role": "tool", "id": "2", "content": "b", "error": True},
            ],
        }
    ]
    assert messages_from_json(rows) == (
        Message("tool", "a", id="1", side="user"),
        Message("tool", "b", id="2", error=True),
    )


def test_calls_that_never_reached_a_tool_are_not_in_a_file() -> None:
    history = [
        Message("assistant", "hm", (Call("a", id="1", error="no JSON"), Call("b", id="2"))),
        Message("tool", "Error: no JSON", id="1", error=True),
        Message("tool", "fine", id="2"),
    ]
    rows = messages_to_json(history)
    assert [row["role"] for row in rows] == ["assistant", "tool"]
    assert [call["name"] for call in rows[0]["tool_calls"]] == ["b"]
    assert [row["turn_idx"] for row in rows] == [0, 1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"role": "judge"}, "a message's role must be assistant, user or tool, got 'judge'"),
        ({"role": "tool"}, "message 0 is not one of τ²-bench's: KeyError: 'id'"),
        (
            {"role": "user", "tool_calls": [{}]},
            "message 0 is not one of τ²-bench's: KeyError: 'name'",
        ),
    ],
)
def test_a_row_that_is_no_message_is_told(row: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        messages_from_json([row])

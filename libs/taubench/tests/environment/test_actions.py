"""One assistant turn, whatever it holds, amounts to defined actions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taubench import Action, DroppedCall, Environment, load_tasks, to_turn

ORDER = ("get_order_details", {"order_id": "#W2378156"})
THINK = ("think", {"thought": "hm"})


def test_text_without_a_call_is_a_message() -> None:
    turn = to_turn("How can I help?")
    assert turn.actions == (Action("respond", {"content": "How can I help?"}),)
    assert (turn.dropped, turn.unheard) == ((), "")


@pytest.mark.parametrize("content", [None, "", 5, b"bytes", ["text"], {"text": "x"}])
def test_a_turn_without_text_is_the_empty_message(content: object) -> None:
    assert to_turn(content).actions == (Action.respond(""),)


def test_a_call_keeps_the_text_beside_it_from_the_user_but_on_record() -> None:
    turn = to_turn("One moment.", [ORDER])
    assert turn.actions == (Action(*ORDER),)
    assert turn.unheard == "One moment."


@pytest.mark.parametrize("arguments", [None, "", "  ", {}, "{}"])
def test_no_arguments_are_no_arguments(arguments: object) -> None:
    assert to_turn("", [("list_all_product_types", arguments)]).actions == (
        Action("list_all_product_types", {}),
    )


def test_arguments_as_json_text_are_read() -> None:
    assert to_turn("", [("think", '{"thought": "hm"}')]).actions == (Action(*THINK),)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("think", "{'thought'", "the arguments of think are not JSON: "),
        ("think", "[" * 100_000, "the arguments of think are not JSON: "),
        ("think", [1], "the arguments of think must be a JSON object, got list"),
        ("think", "5", "the arguments of think must be a JSON object, got int"),
        ("think", 5, "the arguments of think must be a JSON object, got int"),
        (None, {}, "a tool's name must be a string, got NoneType"),
        (["think"], {}, "a tool's name must be a string, got list"),
        ("respond", {}, "respond needs content, a string"),
        ("respond", {"content": None}, "respond needs content, a string"),
    ],
)
def test_a_call_that_cannot_be_made_is_answered_with_its_reason(
    name: object, arguments: object, error: str
) -> None:
    (action,) = to_turn("", [(name, arguments)]).actions
    assert action.error is not None and action.error.startswith(error)
    environment = Environment(load_tasks("retail", "test")[0])
    result = environment.step(action)
    assert result.observation == f"Error: {action.error}"
    assert not result.done and not result.awaits_user


def test_a_tool_called_respond_is_a_message_as_upstream() -> None:
    assert to_turn("", [("respond", {"content": "Hi"})]).actions == (Action.respond("Hi"),)


def test_of_several_calls_the_first_is_made_and_the_others_are_on_record() -> None:
    turn = to_turn("", [ORDER, THINK, ("x", None)])
    assert turn.actions == (Action(*ORDER),)
    assert turn.dropped == (
        DroppedCall(*THINK, "not first"),
        DroppedCall("x", None, "not first"),
    )


def test_by_the_rule_all_every_call_is_made_in_order() -> None:
    turn = to_turn("", [ORDER, THINK], several="all")
    assert turn.actions == (Action(*ORDER), Action(*THINK))
    assert turn.dropped == ()


def test_by_the_rule_error_none_is_made_and_all_are_on_record() -> None:
    turn = to_turn("", [ORDER, THINK], several="error")
    (action,) = turn.actions
    assert action.error == "one tool call at a time, got 2; none was made"
    assert [dropped.name for dropped in turn.dropped] == [ORDER[0], THINK[0]]
    assert to_turn("", [ORDER], several="error").actions == (Action(*ORDER),)


def test_a_call_that_the_parser_could_not_read_is_an_error_unless_another_was_read() -> None:
    turn = to_turn("Let me see", errors=["no closing tag", "no name"])
    assert turn.actions == (Action("", error="no closing tag"),)
    assert (turn.unheard, turn.unread) == ("Let me see", ("no name",))
    for calls in ([ORDER], [ORDER, THINK]):
        turn = to_turn("", calls, errors=["no closing tag"])
        assert turn.actions == (Action(*ORDER),)
        assert turn.unread == ("no closing tag",)


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@given(
    content=ANYTHING,
    calls=st.lists(st.tuples(ANYTHING, ANYTHING), max_size=3),
    several=st.sampled_from(["first", "all", "error"]),
)
def test_no_turn_raises_and_no_call_vanishes(content: Any, calls: Any, several: Any) -> None:
    turn = to_turn(content, calls, several=several)
    assert turn.actions
    made = sum(
        action.error is None or "one tool call" not in action.error for action in turn.actions
    )
    if calls:
        assert made + len(turn.dropped) == len(calls)
    environment = Environment(load_tasks("retail", "test")[0])
    for action in turn.actions:
        if environment.step(action).awaits_user:
            environment.hear("Go on")

"""The closed list of what makes a message an echo of a turn, and that nothing else does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendelta.echo import arguments_of, echo, said, transcribed

TAGS = ("<think>", "</think>")


def call(arguments, name="f", call_id="c1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def close(sent, told, stops=()):
    return echo(said({"role": "assistant", **sent}, TAGS), said(told, TAGS), stops)


SENT = {"content": "It was sent.", "reasoning_content": "I look.", "tool_calls": [call('{"a": 1}')]}
TAGGED = "<think>\nI look.\n</think>\n\nIt was sent."
CALL = {"content": "", "tool_calls": [call('{"a": [1, 2.5], "b": null}')]}


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (SENT, SENT),
        (SENT, {**SENT, "content": "\n It was sent.  "}),
        (SENT, {**SENT, "content": [{"type": "text", "text": "It was "}, {"text": "sent."}]}),
        (SENT, {**SENT, "reasoning_content": None}),
        (SENT, {**SENT, "reasoning_content": " I look.\n"}),
        (SENT, {**SENT, "reasoning_content": "", "reasoning": "I look."}),
        (SENT, {**SENT, "reasoning_content": None, "content": TAGGED}),
        (SENT, {**SENT, "tool_calls": [call('{ "a" :1 }', call_id=None)]}),
        (SENT, {**SENT, "tool_calls": [call({"a": 1})], "refusal": None, "annotations": []}),
        (CALL, {**CALL, "content": None}),
        (CALL, {**CALL, "tool_calls": [call('{"b":null,"a":[1,2.50]}')]}),
        ({"content": "x", "tool_calls": [call("{oops"), call("{}", "g", "c2")]},
         {"content": "x", "tool_calls": [call("{}", "g", "c2"), call("{oops")]}),
        ({"content": "x", "tool_calls": [call('{"a": 1, "a": 2}')]},
         {"content": "x", "tool_calls": [call(' {"a": 1, "a": 2}')]}),
    ],
)  # fmt: skip
def test_ways_to_write_a_turn_down_are_echoes(sent, told) -> None:
    assert close(sent, told) is not None


@pytest.mark.parametrize(
    "edit",
    [
        {"content": "It was"},
        {"content": "It was sent. And more."},
        {"content": "it was sent."},
        {"content": "It  was sent."},
        {"content": ""},
        {"content": "<think>other</think>It was sent."},
        {"reasoning_content": "I looked."},
        {"tool_calls": []},
        {"tool_calls": [call('{"a": 2}')]},
        {"tool_calls": [call('{"a": 1.0}')]},
        {"tool_calls": [call('{"a": true}')]},
        {"tool_calls": [call('{"a": "1"}')]},
        {"tool_calls": [call('{"a": 1, "b": null}')]},
        {"tool_calls": [call('{"a": 1}', name="g")]},
        {"tool_calls": [call('{"a": 1}', call_id="c2")]},
        {"tool_calls": [call('{"a": 1}')] * 2},
        {"content": [{"type": "image_url", "image_url": "x"}]},
    ],
)
def test_an_edit_is_no_echo(edit) -> None:
    assert close(SENT, {**SENT, **edit}) is None


EDIT = {
    "name": "f",
    "parameters": {"properties": {"a": {"default": 7}, "all": {"default": False}, "b": {}}},
}


@pytest.mark.parametrize(
    ("given", "told", "same"),
    [
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "all": False}, True),
        ({}, {"a": 7, "all": False}, True),
        ({"a": 1}, {"all": False, "a": 1.0}, False),
        ({"a": 1}, {"a": 1, "all": 0}, False),
        ({"a": 1}, {"a": 1, "all": True}, False),
        ({"a": 1}, {"a": 1, "all": False, "b": None}, False),
        ({"a": 1, "all": False}, {"a": 1}, False),
        ({"all": True}, {"a": 7, "all": False}, False),
    ],
)
def test_the_defaults_of_a_tools_schema_may_be_filled_in_and_nothing_else(
    given, told, same
) -> None:
    turn = {"content": "", "tool_calls": [call(json.dumps(given))]}
    for tools in ([EDIT], [{"type": "function", "function": EDIT}]):
        sent = said(turn, TAGS, tools)
        back = said({"content": "", "tool_calls": [call(json.dumps(told))]}, TAGS)
        assert (echo(sent, back) is not None) is same
        assert echo(sent, said({"content": ""}, TAGS)) is None


@pytest.mark.parametrize("thought", ["", "<think>\nI look.\n</think>\n\n"])
def test_a_stop_string_is_put_back_behind_what_ended_the_text(thought) -> None:
    sent = {"content": thought + "look()\n"}
    assert close(sent, {"content": thought + "look()\n</code>"}, ("</code>",)) is not None
    assert close(sent, {"content": thought + "look() </code>"}, ("</code>",)) is None


def written_out(text, calls):
    return {"role": "assistant", "content": f"{text}Calling tools:\n{calls}"}


def transcript(call_id="c1", name="f", **arguments):
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def close_written_out(sent, told):
    meant = transcribed(said(told, TAGS))
    return meant and echo(said({"role": "assistant", **sent}, TAGS), meant)


LISTED = {"content": "I look. ", "tool_calls": [call('{"a": "it\'s", "b": [null, true, 2.5]}')]}
LIST = [transcript(a="it's", b=[None, True, 2.5])]


@pytest.mark.parametrize("text", ["I look.\n", "  I look. \n"])
def test_calls_that_a_transcript_lists_with_their_ids_are_the_turns(text) -> None:
    assert close_written_out(LISTED, written_out(text, LIST)) is not None
    bare = {**LISTED, "content": ""}
    assert close_written_out(bare, written_out("", LIST)) is not None


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("I look.\n", [transcript(a="it's", b=[None, True, 2])]),
        ("I look.\n", [transcript(a="it's", b=(None, True, 2.5))]),
        ("I look.\n", [{**transcript(a="it's", b=[None, True, 2.5]), "id": ""}]),
        ("I look.\n", [transcript("c2", a="it's", b=[None, True, 2.5])]),
        ("I look.\n", LIST * 2),
        ("I look.\n", f"{LIST} and more"),
        ("I look.\n", "[" * 10_000),
        ("I look.\n", f"[{' ' * 50_000}{str(LIST)[1:]}"),
        ("I look.\n", "print(1)"),
        ("I look.\n", "[{1: 2}]"),
        ("I look. ", LIST),
        ("I looked.\n", LIST),
        ("", LIST),
    ],
)
def test_a_transcript_that_says_anything_else_is_no_echo(text, calls) -> None:
    assert close_written_out(LISTED, written_out(text, calls)) is None


CODE = {"content": "I look.\n<code>\nlook('a')\n</code>"}


@pytest.mark.parametrize(
    ("text", "called", "same"),
    [
        ("I look.\n<code>\nlook('a')\n</code>\n", "look('a')", True),
        ("I look.\n<code>\nlook('a')\n</code>\n", "look('b')", False),
        ("I look.\n<code>\nlook('a')\n</code>\n", "look('a", False),
        ("I look.\n<code>\nlook('a')\n</code> \n and more\n", "look('a')", False),
        ("<code>\nlook('a')\n</code>\n", "look('a')", False),
    ],
)
def test_code_that_a_transcript_repeats_is_the_turns(text, called, same) -> None:
    repeated = transcript("call_7", "python_interpreter")
    repeated["function"]["arguments"] = called
    assert (close_written_out(CODE, written_out(text, [repeated])) is not None) is same


@pytest.mark.parametrize("number", ["1e" + "9" * 30, "1e-" + "9" * 30])
def test_a_number_beyond_all_bounds_is_compared_as_text(number) -> None:
    spelled = f'{{"a": {number}}}'
    assert arguments_of(spelled) == ("text " + spelled, True)


def test_arguments_that_a_reader_may_change_are_compared_as_text() -> None:
    for changed, by_reader in (
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ('{"a": 0.1000000000000000055}', '{"a": 0.1}'),
        ('{"a": 1e999}', '{"a": Infinity}'),
        ("{'a': 1}", '{"a": 1}'),
        ("[" * 100_000, "["),
    ):
        sent, told = ({"content": "", "tool_calls": [call(text)]} for text in (changed, by_reader))
        assert close(sent, told) is None and close(sent, sent) is not None
    assert (
        arguments_of('{"a": 12345678901234567890}')[0]
        != arguments_of('{"a": 1234567890123456789}')[0]
    )


def test_a_stop_string_that_was_taken_away_may_come_back_at_the_end_alone() -> None:
    sent = {"content": "print(1)"}
    assert close(sent, {"content": "print(1)</code>"}, ("</code>",)) is not None
    assert close(sent, {"content": "print(1)</code>"}) is None
    assert close(sent, {"content": "</code>print(1)"}, ("</code>",)) is None
    sent = {"content": "I think.\n"}
    for told in ("I think.\nEND", "I think.END", "I think."):
        assert close(sent, {"content": told}, ("END",)) is not None
    assert close(sent, {"content": "I think. END"}, ("END",)) is None


def test_a_handle_names_one_turn_and_may_be_left_out() -> None:
    sent = {**SENT, "handle": "a"}
    assert close(sent, sent) > close(sent, SENT)
    assert close(sent, SENT) is not None
    assert close(sent, {**SENT, "handle": "b"}) is None
    assert close(SENT, {**SENT, "handle": "b"}) is None


def test_ids_and_reasoning_make_an_echo_closer() -> None:
    assert close(SENT, SENT) > close(SENT, {**SENT, "reasoning_content": ""})
    without_ids = {**SENT, "tool_calls": [call('{"a": 1}', call_id="")]}
    assert close(SENT, SENT) > close(SENT, without_ids)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)


@given(ARGUMENTS, ARGUMENTS, st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :  ")]))
def test_arguments_are_equal_exactly_where_their_values_and_types_are(
    left, right, separators
) -> None:
    spelled = json.dumps(left, separators=separators, ensure_ascii=False)
    assert arguments_of(spelled) == arguments_of(left)
    same = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    assert (arguments_of(spelled) == arguments_of(json.dumps(right))) == same


@given(st.text(max_size=12), st.text(max_size=12))
def test_two_texts_are_echoes_only_if_they_are_equal_but_for_outer_whitespace(left, right) -> None:
    tagged = any(text.strip().startswith("<think>") for text in (left, right))
    expected = left.strip() == right.strip()
    assert tagged or (close({"content": left}, {"content": right}) is not None) == expected

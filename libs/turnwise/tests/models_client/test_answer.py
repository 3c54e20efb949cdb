"""What an answer says, whatever it holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.models.answer import (
    MAX_TOKENS,
    ChatReply,
    NoAnswer,
    Refused,
    ToolCall,
    TooLong,
    Unusable,
    check_status,
    decode,
    read_error,
    read_reply,
    usage,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "choices message content tool_calls function arguments finish_reason error code "
                "usage prompt_tokens completion_tokens refusal reasoning type text".split()
            ),
            part,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def said(message: Any, finish: Any = "stop") -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish}]}


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 529])
@pytest.mark.parametrize(
    "words",
    [
        "Too many tokens, please wait before trying again.",
        "context_length_exceeded",
        "tokens per min (TPM): the input or output tokens must be reduced",
        "no server with this context window is free",
    ],
)
def test_a_server_that_is_busy_is_busy_whatever_it_says(status: int, words: str) -> None:
    with pytest.raises(NoAnswer):
        check_status(status, words, words, None)


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (400, "This model's maximum context length is 4096 tokens", TooLong),
        (422, "prompt is too long: 210000 tokens > 200000 maximum", TooLong),
        (413, "exceed_context_size_error", TooLong),
        (413, "Request too large on tokens per minute (TPM), maximum context 9", Refused),
        (400, "too many tokens: rate limit", Refused),
        (401, "context window", Refused),
        (404, "no model with this context length", Refused),
        (429, '{"code": "insufficient_quota"}', Refused),
        (None, '{"code": "insufficient_quota"}', Refused),
        (None, "busy", Unusable),
        (301, "", Refused),
    ],
)
def test_a_status_and_words_say_what_it_is(
    status: int | None, words: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        check_status(status, words, words, None)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"error": {"code": 502}, "choices": []}, 502),
        ({"error": {"code": "503"}}, 503),
        ({"choices": [{"error": {"code": 429}, "message": {"content": ""}}]}, 429),
        ({"object": "error", "message": "busy", "code": 400}, 400),
        ({"error": {"code": "rate_limit_exceeded"}}, None),
        ({"error": {"code": 7}}, None),
        ({"error": {"code": True}}, None),
        ({"error": "busy"}, None),
        ({"error": ["busy"]}, None),
    ],
)
def test_an_error_is_found_wherever_it_stands(answer: Any, status: int | None) -> None:
    found = read_error(answer)
    assert found is not None and found[0] == status


@pytest.mark.parametrize("none", [None, "", {}, [], False])
def test_an_error_that_is_none_is_none(none: Any) -> None:
    assert read_error({**said({"content": "yes"}), "error": none}) is None


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("stop", "stop"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("tool_use", "tool_calls"),
        ("eos", "eos"),
        (None, ""),
        (7, ""),
        ("\x1b[31mstop", "\\x1b[31mstop"),
        ("x" * 1000, "x" * 64),
    ],
)
def test_the_reason_to_end_is_one_of_a_few_words(word: Any, kept: str) -> None:
    assert read_reply(said({"content": "yes"}, word), offers_tools=False).finish == kept


def test_thoughts_among_the_parts_are_no_words() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "nine?"}]},
        {"type": "reasoning", "text": "nine?"},
        {"type": "text", "text": "ten"},
        "loose",
        {"type": "refusal", "refusal": "no"},
    ]
    reply = read_reply(said({"content": parts}), offers_tools=False)
    assert (reply.text, reply.refusal) == ("ten", "no")


@pytest.mark.parametrize(
    ("calls", "read"),
    [
        ([{"id": "a", "function": {"name": "f", "arguments": "{}"}}], ToolCall("a", "f", "{}")),
        ([{"function": {"name": "f", "arguments": {"x": 1}}}], ToolCall("", "f", '{"x": 1}')),
        ([{"id": 3, "function": None}], ToolCall("", "", "")),
    ],
)
def test_what_is_missing_in_a_call_is_the_models(calls: Any, read: ToolCall) -> None:
    answer = said({"content": None, "tool_calls": calls}, "tool_calls")
    assert read_reply(answer, offers_tools=True).tool_calls == (read,)


def test_a_call_in_the_form_of_before_is_a_call() -> None:
    message = {"content": None, "function_call": {"name": "f", "arguments": "{}"}}
    reply = read_reply(said(message, "function_call"), offers_tools=True)
    assert (reply.tool_calls, reply.finish) == ((ToolCall("", "f", "{}"),), "tool_calls")


@pytest.mark.parametrize("calls", ["x", [7], {"id": "a"}, None, []])
def test_calls_that_are_none_are_the_endpoints(calls: Any) -> None:
    answer = said({"content": None, "tool_calls": calls}, "tool_calls")
    with pytest.raises(Unusable, match="tool_calls"):
        read_reply(answer, offers_tools=True)


def test_an_answer_that_ends_for_its_length_may_hold_thoughts_alone() -> None:
    answer = said({"content": None, "reasoning_content": "so"}, "length")
    reply = read_reply(answer, offers_tools=False)
    assert reply == ChatReply("", "length", 0, 0, reasoning={"reasoning_content": "so"})


@pytest.mark.parametrize(
    ("counts", "read"),
    [
        ((20, 9), (20, 9)),
        ((20.0, 9.0), (20, 9)),
        ((MAX_TOKENS, 0), (MAX_TOKENS, 0)),
        ((MAX_TOKENS + 1, 0), None),
        ((int("9" * 400), 1), None),
        ((float("nan"), 1), None),
        ((float("inf"), 1), None),
        ((-1, 1), None),
        ((0, 1), None),
    ],
)
def test_a_count_beyond_reason_counts_nothing(counts: Any, read: tuple[int, int] | None) -> None:
    answer = {"usage": {"prompt_tokens": counts[0], "completion_tokens": counts[1]}}
    assert usage(answer) == read


@pytest.mark.parametrize(
    "text",
    ['{"created": NaN}', '{"a": "\\ud83d"}', '{"a": 1e999}', '{"n": ' + "9" * 4000 + "}"],
)
def test_json_that_only_some_take_is_taken(text: str) -> None:
    json.dumps(decode(text)).encode()


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"a":' * 5000, "9" * 5000, "<html>", "\x00"]
)
def test_what_is_no_json_is_unusable(text: str) -> None:
    with pytest.raises(Unusable, match="no JSON"):
        decode(text)


@given(answer=JSON, offers_tools=st.booleans())
def test_any_json_is_an_answer_or_unusable(answer: Any, offers_tools: bool) -> None:
    for value in (answer, said(answer), {"choices": [answer]}, {"usage": answer}):
        read_error(value)
        counted = usage(value)
        assert counted is None or all(0 <= count <= MAX_TOKENS for count in counted)
        try:
            reply = read_reply(value, offers_tools=offers_tools)
        except Unusable:
            continue
        assert isinstance(reply.text, str) and isinstance(reply.finish, str)

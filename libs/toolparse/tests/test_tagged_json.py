"""Qwen 2.5 and Hermes: what is executed, what is refused, and why."""

import pytest
import toolparse

TOOLS = [
    {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}},
]


def wrap(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


CALL = wrap('{"name": "run", "arguments": {"cmd": "ls"}}')


def test_a_call_is_read_with_its_text_and_spans() -> None:
    text = "Ünder way.\n" + CALL
    call = toolparse.parse(text, tools=TOOLS).calls[0]
    assert (call.name, call.arguments, call.raw_arguments) == (
        "run",
        {"cmd": "ls"},
        '{"cmd": "ls"}',
    )
    assert text[slice(*call.span)] == CALL
    assert text.encode()[slice(*call.byte_span)].decode() == CALL
    assert call.name_span and call.arguments_span
    assert text[slice(*call.name_span)] == "run"
    assert text[slice(*call.arguments_span)] == '{"cmd": "ls"}'


def test_content_keeps_both_sides_of_a_call_byte_for_byte() -> None:
    parsed = toolparse.parse(f"a \n\n{CALL}\n b<|im_end|>\n")
    assert parsed.content == "a \n\n\n b"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("", "empty_body"),
        ('{"name": "run", "arguments": {"cmd": "ls"}', "bad_json"),
        ('{"name": "run", "arguments": {"cmd": "ls"}}}', "bad_json"),
        ('{"name": "run", "arguments": {}} {"name": "run"}', "extra_data"),
        ("[1, 2]", "not_object"),
        ('{"arguments": {}}', "missing_name"),
        ('{"name": "run", "arguments": null}', "args_not_object"),
        ('{"name": "run", "arguments": {"a": 1, "\\u0061": 2}}', "duplicate_key"),
        ('{"name": "run", "arguments": {}, "parameters": {}}', "ambiguous_arguments"),
        ('{"name": "run", "arguments": {"a": "\\ud83d"}}', "bad_json"),
        ('{"name": "run", "arguments": {"a": ' + "[" * 200 + "}}", "too_deep"),
        ('{"name": "run", "arguments": {"a": ' + "9" * 5000 + "}}", "too_long"),
        ('{"name": "Run", "arguments": {}}', "unknown_tool"),
    ],
)
def test_each_fault_has_its_kind_and_executes_nothing(body: str, kind: str) -> None:
    parsed = toolparse.parse(wrap(body), tools=TOOLS)
    assert [e.kind for e in parsed.errors] == [kind]
    assert parsed.calls == []
    assert parsed.attempts[0].raw == wrap(body)
    assert parsed.errors[0].message.endswith((".", "?"))


def test_a_cut_call_is_truncation_and_a_call_with_its_close_tag_is_not() -> None:
    cut = toolparse.parse('<tool_call>\n{"name": "run", "arguments": {"cmd": "l')
    assert cut.errors[0].group == "truncation"
    assert cut.attempts[0].name == "run"
    closed = toolparse.parse(wrap('{"name": "run", "arguments": {"cmd": "l'))
    assert closed.errors[0].group == "syntax"


def test_a_call_in_the_reasoning_is_reported_and_not_executed() -> None:
    parsed = toolparse.parse(f"<think>{CALL}</think>ok{CALL}")
    assert [c.status for c in parsed.attempts] == ["in_reasoning", "ok"]
    assert parsed.reasoning == CALL
    assert parsed.content == "ok"


def test_lenient_never_closes_a_string_of_a_truncated_call() -> None:
    text = '<tool_call>\n{"name": "run", "arguments": {"cmd": "rm -rf /tm'
    for cut in (text, text + "\n</tool_call>", text + "</tool_call>"):
        assert toolparse.parse(cut, mode="lenient").calls == []


def test_lenient_names_its_repairs() -> None:
    parsed = toolparse.parse(wrap("{'name': 'run', 'arguments': {'a': True,}}"), mode="lenient")
    assert parsed.calls[0].arguments == {"a": True}
    assert set(parsed.calls[0].repairs) == {"python_literal", "trailing_comma"}


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_any_chunking_gives_the_one_shot_result(size: int) -> None:
    text = f"<think>hm</think>é <tool{CALL} x {wrap('{bad')}{CALL}<|im_end|>"
    stream = toolparse.Stream()
    data = text.encode()
    seen = []
    for i in range(0, len(data), size):
        seen += stream.feed(data[i : i + size])
    whole, parsed = stream.finish(), toolparse.parse(text)
    assert (whole.content, whole.reasoning) == (parsed.content, parsed.reasoning)
    assert [c.span for c in whole.attempts] == [c.span for c in parsed.attempts]
    assert [c.span for c in seen] == [c.span for c in parsed.calls]


def test_a_stream_is_done_at_the_close_tag_of_the_last_wanted_call() -> None:
    stream = toolparse.Stream(limit=1)
    assert not stream.feed(CALL[:-1]) and not stream.done
    assert stream.feed(">")[0].name == "run" and stream.done


def test_an_unknown_format_or_mode_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'hermes'"):
        toolparse.parse("", format="hermis")
    with pytest.raises(ValueError, match="strict"):
        toolparse.parse("", mode="loose")

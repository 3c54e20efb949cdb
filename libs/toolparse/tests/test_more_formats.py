"""Formats that no engine names: texts as their public templates write them, and what is near."""

from __future__ import annotations

from typing import Any

import pytest
import toolparse
from toolparse_support import TOOLS, view, written

X, Y = ("f", {"a": "x", "n": 2}), ("g", {"q": "y"})
TEXTS: list[tuple[str, str, list[Any], str]] = [
    ("nemotron_nano_v2", '<TOOLCALL>[{"name": "f", "arguments": {"a": "x", "n": 2}}, '
     '{"name": "g", "arguments": {"q": "y"}}]</TOOLCALL>', [X, Y], ""),
    ("solar_open", "<|think|>plan<|end|><|begin|>assistant<|content|>I look.<|end|><|begin|>"
     'assistant<|tool_calls|><|tool_call:begin|>c-7<|tool_call:name|>f<|tool_call:args|>'
     '{"a": "x", "n": 2}<|tool_call:end|><|calls|>', [X], "I look."),
    ("minimax-m1", '<think>plan</think>\n<tool_calls>\n'
     '{"name": "f", "arguments": {"a": "x", "n": 2}}\n'
     '{"name": "g", "arguments": {"q": "y"}}\n</tool_calls><end_of_sentence>', [X, Y], "\n"),
    ("functionary_v3.1", 'I look.<function=f>{"a": "x", "n": 2}</function>'
     '<function=g>{"q": "y"}</function><|eom_id|>', [X, Y], "I look."),
    ("functionary_v3.2", 'all\nI look.>>>f\n{"a": "x", "n": 2}>>>g\n{"q": "y"}<|eot_id|>', [X, Y],
     "I look."),
    ("functionary_v3.2", 'f\n{"a": "x", "n": 2}', [X], ""),
    ("firefunction_v2", 'I look. functools[{"name": "g", "arguments": {"q": "y"}}]<|eot_id|>', [Y],
     "I look."),
    ("command_r_plus", 'I look.\nAction:\n```json\n[\n    {\n        "tool_name": "g",\n'
     '        "parameters": {\n            "q": "y"\n        }\n    }\n]```', [Y], "I look.\n"),
    ("internlm", '<|action_start|><|plugin|>\n{"name": "g", "parameters": {"q": "y"}}'
     "<|action_end|>", [Y], ""),
    ("interns1", '<|action_start|><|plugin|>\n{"name": "g", "parameters": {"q": "y"}}'
     "<|action_end|>", [Y], ""),
    ("dots", '<dots_function_call>{"name": "g", "arguments": {"q": "y"}}</dots_function_call>', [Y],
     ""),
    ("xlam", 'I look.\n```json\n[{"name": "g", "arguments": {"q": "y"}}]\n```', [Y], "I look.\n"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text", "calls", "content"), TEXTS)
def test_a_text_as_the_template_writes_it_is_read(
    format: str, text: str, calls: list[Any], content: str
) -> None:
    parsed = toolparse.parse(text, format, TOOLS)
    assert [(c.name, c.arguments) for c in parsed.calls] == calls
    assert parsed.content == content and parsed.errors == []
    stream = toolparse.Stream(format, TOOLS)
    for c in text:
        stream.feed(c)
    assert view(stream.finish()) == view(parsed)


@pytest.mark.parametrize(
    ("format", "text", "kind"),
    [
        ("minimax-m1", "<tool_calls>\n</tool_calls>", "empty_body"),
        ("minimax-m1", '<tool_calls>\n{"name": "g", "arguments": {}\n</tool_calls>', "bad_json"),
        ("minimax-m1", '<tool_calls>\n{"name": "g", "arguments": {}}\n', "unclosed"),
        ("functionary_v3.1", '<function=f>{"a": "x"}', "unclosed"),
        ("functionary_v3.1", '<function=f>{"a": x}</function>', "bad_json"),
        ("functionary_v3.2", 'f\n{"a": "x"', "unclosed"),
        ("functionary_v3.2", 'f\n{"a": "x"} and more', "extra_data"),
        ("solar_open", "<|tool_calls|><|tool_call:begin|>c<|tool_call:name|>f"
         '<|tool_call:args|>{"a"', "unclosed"),
        ("command_r_plus", 'Action:\n```json\n[{"tool_name": "g", "parameters": []}]```',
         "args_not_object"),
        ("nemotron_nano_v2", '<TOOLCALL>{"name": "g", "arguments": {}}</TOOLCALL>',
         "malformed_tag"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_of_them_has_its_kind(format: str, text: str, kind: str) -> None:
    parsed = toolparse.parse(text, format, TOOLS)
    assert [e.kind for e in parsed.errors] == [kind] and parsed.calls == []


def test_any_character_may_stand_in_a_beam_value() -> None:
    for value in ("\x00", "a\x00", "\x00\n</rfl:parameter> \x00", "\u00ff"):
        text = written("beam", [("f", {"a": value}), ("g", {"q": "y"})])
        parsed = toolparse.parse(text, "beam", TOOLS)
        assert [c.arguments for c in parsed.calls] == [{"a": value}, {"q": "y"}]


def test_words_that_are_no_header_are_content() -> None:
    for format, text in (
        ("functionary_v3.2", "all\n>>> print(1)\n>>> help\n"),
        ("command_r_plus", "Action: wait for the bus.\nAction:\nnone"),
        ("firefunction_v2", "import functools"),
        ("xlam", 'See\n```json\n[{"id": 1}]\n```'),
    ):
        parsed = toolparse.parse(text, format, TOOLS)
        assert parsed.calls == [] and parsed.errors == []
        assert parsed.content == text.removeprefix("all\n")


@pytest.mark.parametrize(
    "text",
    [
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="g"/>\n</｜DSML｜tool_calls>',
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="g" />\n'
        '<｜DSML｜invoke name="g"/></｜DSML｜tool_calls>',
    ],
)
def test_a_call_that_closes_itself_has_no_arguments_and_is_flagged(text: str) -> None:
    parsed = toolparse.parse(text, "deepseekv4", TOOLS)
    assert {(c.name, str(c.arguments)) for c in parsed.calls} == {("g", "{}")}
    assert parsed.errors == [] and parsed.content == ""
    assert {f.kind for f in parsed.flags} == {"noncanonical_literal"}


@pytest.mark.parametrize("format", ["minimax-m2", "dots", "minicpm5", "step3", "gigachat35"])
def test_a_call_may_close_itself_in_every_format_of_invoke_tags(format: str) -> None:
    from toolparse.grammars.table import grammar_of

    text = grammar_of(format).write([("g", {})])
    shape = grammar_of(format).shape  # type: ignore[attr-defined]
    first, last = text.index(shape.name_end.decode()), text.index(shape.call_close.decode())
    tail = shape.call_close.decode().partition(">")[2]
    closed = text[:first] + '"/>' + tail + text[last + len(shape.call_close.decode()) :]
    parsed = toolparse.parse(closed, format, TOOLS)
    assert [(c.name, c.arguments) for c in parsed.calls] == [("g", {})], closed


def test_the_close_tag_of_a_misspelled_section_is_no_content() -> None:
    text = (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    )
    parsed = toolparse.parse(text, "deepseekv4", TOOLS)
    assert [e.kind for e in parsed.errors] == ["malformed_tag", "missing_open_tag"]
    assert parsed.content.strip() == ""


@pytest.mark.parametrize(
    ("format", "text", "name"),
    [
        ("jamba", "use <tool_call></tool_call>: {{ '\\n<tool_calls>[' }}", "jamba"),
        ("minimax-m1", "<beginning_of_sentence>ai <tool_calls>\n", "minimax-m1"),
        ("functionary_v3.1", "{{ '<function=' + name + '>' + arguments + '</function>' }}", ""),
        ("functionary_v3.2", ">>>${recipient}\n${content}", ""),
        ("gigachat3", "'role': 'function call', role_sep='<|role_sep|>'", ""),
        ("lfm2", "'List of tools: ['", ""),
        ("solar_open", "<|tool_call:begin|>", ""),
        ("nemotron_nano_v2", "<TOOLCALL>[", ""),
        ("firefunction_v2", "content + ' functools[' + calls", ""),
        ("phi4_mini_json", 'in a list: functools[{"name"', ""),
        ("command_r_plus", 'Action:\n```json\n[{"tool_name"', ""),
    ],
)
def test_a_template_is_told_by_what_it_writes(format: str, text: str, name: str) -> None:
    assert toolparse.detect(text) == (name or format)

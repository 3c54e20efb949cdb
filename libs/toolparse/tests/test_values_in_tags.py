"""Where a tagged value ends, and what is repaired in one."""

from __future__ import annotations

from typing import Any

import pytest
import toolparse
from toolparse_support import view

STRINGS = {"type": "object", "properties": {k: {"type": "string"} for k in "abc"}}
TOOLS = toolparse.ToolSet([{"name": "f", "parameters": STRINGS}])


def minimax(body: str) -> str:
    return f'<minimax:tool_call>\n<invoke name="f">\n{body}\n</invoke>\n</minimax:tool_call>'


def qwen(body: str) -> str:
    return f"<tool_call>\n<function=f>\n{body}\n</function>\n</tool_call>"


def glm(body: str) -> str:
    return f"<tool_call>f{body}</tool_call>"


def dsml(body: str) -> str:
    head = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
    return f"{head}{body}\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"


READ: list[tuple[str, str, dict[str, Any]]] = [
    ("minimax-m2", minimax('<parameter name="a">write </parameter> to close</parameter>'),
     {"a": "write </parameter> to close"}),
    ("minimax-m2", minimax('<parameter name="a">1</parameter> 2</parameter> 3</parameter>\n'
     '<parameter name="b">x</parameter>'), {"a": "1</parameter> 2</parameter> 3", "b": "x"}),
    ("qwen3_coder", qwen("<parameter=a>\nsee </parameter> there\n</parameter>"),
     {"a": "see </parameter> there"}),
    ("glm47", glm("<arg_key>a</arg_key><arg_value>use <arg_key> to open</arg_value>"),
     {"a": "use <arg_key> to open"}),
    ("glm47", glm("<arg_key>a</arg_key><arg_value>x</arg_value> y</arg_value>"),
     {"a": "x</arg_value> y"}),
    ("minimax-m2", minimax('<parameter name="a">the <parameter name="z"> tag</parameter>'),
     {"a": 'the <parameter name="z"> tag'}),
    ("qwen3_coder", qwen("<parameter=a>\n  <parameter=z>\n</parameter>"),
     {"a": "  <parameter=z>"}),
]  # fmt: skip

REFUSED: list[tuple[str, str]] = [
    ("deepseekv4", dsml('<｜DSML｜parameter name="a" string="true">x <｜DSML｜parameter name="z" '
     'string="true">y</｜DSML｜parameter>')),
    ("minimax-m2", minimax('<parameter name="a">x <parameter name="b">y</parameter>')),
    ("qwen3_coder", qwen("<parameter=a>\nx <parameter=b>\ny\n</parameter>")),
    ("glm47", glm("<arg_key>a</arg_key><arg_value>x<arg_key>b</arg_key><arg_value>y</arg_value>")),
    ("qwen3_coder", qwen("<parameter=a>\nx\n</parameter>\n</parameter>\n<parameter=b>\ny\n"
     "</parameter>")),
    ("minimax-m2", minimax('<parameter name="a">x</parameter> junk')),
]  # fmt: skip


def streamed(format: str, text: str, mode: str) -> toolparse.Parsed:
    stream = toolparse.Stream(format, TOOLS, mode)
    for c in text:
        stream.feed(c)
    return stream.finish()


@pytest.mark.parametrize(("format", "text", "arguments"), READ)
def test_a_tag_inside_a_value_is_text_where_a_later_one_ends_it(
    format: str, text: str, arguments: dict[str, Any]
) -> None:
    parsed = toolparse.parse(text, format, TOOLS)
    assert [c.arguments for c in parsed.calls] == [arguments]
    assert view(streamed(format, text, "strict")) == view(parsed)


@pytest.mark.parametrize(("format", "text"), REFUSED)
def test_a_value_that_swallowed_another_argument_is_refused(format: str, text: str) -> None:
    parsed = toolparse.parse(text, format, TOOLS)
    assert [e.kind for e in parsed.errors] == ["malformed_tag"] and parsed.calls == []
    assert view(streamed(format, text, "strict")) == view(parsed)


REPAIRED: list[tuple[str, str, dict[str, Any], str]] = [
    ("qwen3_coder", REFUSED[4][1], {"a": "x", "b": "y"}, "stray_close"),
    ("gemma4", '<|tool_call>call:f{a:"x",b:["y", {"k": "v"}]}<tool_call|>',
     {"a": "x", "b": ["y", {"k": "v"}]}, "json_string"),
    ("gemma4", '<|tool_call>call:f{"a":"x\\n"}<tool_call|>', {"a": "x\n"}, "json_string"),
    ("mistral", '[TOOL_CALLS] {"name": "f", "arguments": {"a": "x"}}', {"a": "x"},
     "list_brackets"),
    ("cohere_command4", '<|START_ACTION|>{"tool_name": "f", "parameters": {"a": "x"}}'
     "<|END_ACTION|>", {"a": "x"}, "list_brackets"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text", "arguments", "repair"), REPAIRED)
def test_lenient_repairs_it_by_name_and_strict_does_not(
    format: str, text: str, arguments: dict[str, Any], repair: str
) -> None:
    assert toolparse.parse(text, format, TOOLS).calls == []
    call = toolparse.parse(text, format, TOOLS, "lenient").calls[0]
    assert (call.arguments, call.repairs) == (arguments, (repair,))


@pytest.mark.parametrize("stop", ["<|tool_response>", "<turn|>", "<eos>"])
def test_the_token_on_which_generation_stops_is_no_content(stop: str) -> None:
    for format in ("gemma4", "functiongemma"):
        parsed = toolparse.parse(f"done{stop}", format, TOOLS)
        assert parsed.content == "done" and parsed.stop_span == (4, 4 + len(stop))
    assert toolparse.parse("done<start_function_response>", "functiongemma").content == "done"


@pytest.mark.parametrize(
    ("format", "stop"),
    [
        ("inkling", "<|content_model_end_sampling|>"),
        ("kimi_k3", "<|end_of_msg|>"),
        ("poolside_v1", "</assistant>"),
        ("seed_oss", "<seed:eos>"),
        ("hunyuan", "<｜hy_eos:opensource｜>"),
        ("apertus2509", "<|assistant_end|>"),
        ("longcat", "</longcat_s>"),
        ("minimax-m1", "<end_of_sentence>"),
    ],
)
def test_a_row_may_name_stop_tokens_of_its_own(format: str, stop: str) -> None:
    assert toolparse.parse(f"done{stop}\n", format, TOOLS).content == "done"

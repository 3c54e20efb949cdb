"""Values by schema, tools compiled once, and what a parse reports beside its calls."""

from __future__ import annotations

from typing import Any

import pytest
import toolparse
from toolparse import ToolSet
from toolparse_support import TOOLS, written

REFS: dict[str, Any] = {
    "name": "t",
    "parameters": {
        "type": "object",
        "$defs": {
            "Size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "Loop": {"$ref": "#/$defs/Loop"},
            "Kind": {"enum": ["a", "b"]},
        },
        "properties": {
            "size": {"$ref": "#/$defs/Size"},
            "loop": {"$ref": "#/$defs/Loop"},
            "kind": {"$ref": "#/$defs/Kind"},
            "either": {"type": ["string", "integer"]},
            "when": {"type": "string", "nullable": True},
            "all": {"allOf": [{"type": "number"}, {"minimum": 0}]},
            "rows": {"items": {"type": "integer"}},
            "odd": {"type": "varchar"},
            "far": {"$ref": "https://elsewhere/x"},
        },
        "required": ["size"],
    },
}


def value(param: str, text: str, tools: Any = REFS) -> Any:
    body = f"<tool_call>\n<function=t>\n<parameter={param}>\n{text}\n</parameter>\n</function>\n"
    parsed = toolparse.parse(body + "</tool_call>", "qwen3_coder", [tools])
    if parsed.errors:
        return parsed.errors[0].kind
    return (parsed.calls[0].arguments or {})[param]


@pytest.mark.parametrize(
    ("param", "text", "want"),
    [
        ("size", "5", 5),
        ("size", "-0", 0),
        ("size", " 9007199254740993 ", 9007199254740993),
        ("size", "null", None),
        ("size", "None", None),
        ("size", "5.0", "bad_param_type"),
        ("size", "5e0", "bad_param_type"),
        ("size", "five", "bad_param_type"),
        ("size", "", "bad_param_type"),
        ("size", "01", "bad_param_type"),
        ("kind", "a", "a"),
        ("either", "5", 5),
        ("either", "5x", "5x"),
        ("either", '"q"', '"q"'),
        ("when", "null", None),
        ("when", "noon", "noon"),
        ("all", "1e3", 1000.0),
        ("all", "9007199254740993", 9007199254740993),
        ("all", "1e999", "bad_param_type"),
        ("all", "NaN", "bad_param_type"),
        ("rows", "[1, 2]", [1, 2]),
        ("rows", "['a']", "bad_param_type"),
        ("loop", "5", "5"),
        ("odd", "5", "5"),
        ("far", "5", "5"),
        ("undeclared", "5", "5"),
    ],
)
def test_a_value_is_exactly_what_its_schema_says_or_an_error(
    param: str, text: str, want: Any
) -> None:
    got = value(param, text)
    assert got == want and type(got) is type(want)


def test_without_tools_every_value_is_its_text() -> None:
    text = "<tool_call>\n<function=t>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>"
    assert toolparse.parse(text, "qwen3_coder").calls[0].arguments == {"n": "5"}


def test_a_value_that_does_not_fit_is_kept_as_its_text() -> None:
    text = written("qwen3_coder", [("f", {"n": "soon", "a": "x"})])
    call = toolparse.parse(text, "qwen3_coder", TOOLS).attempts[0]
    assert call.error and call.error.param == "n" and "'soon'" in call.error.message
    assert call.arguments == {"n": "soon", "a": "x"}


def test_a_toolset_is_the_same_as_its_declarations() -> None:
    declared = [REFS, {"type": "function", "function": {"name": "u"}}]
    text = written("qwen3_coder", [("t", {"size": 3}), ("u", {})])
    one = toolparse.parse(text, "qwen3_coder", declared)
    two = toolparse.parse(text, "qwen3_coder", ToolSet(declared))
    assert [c.arguments for c in one.calls] == [c.arguments for c in two.calls] == [{"size": 3}, {}]
    assert ToolSet(declared).names == ("t", "u") and "t" in ToolSet(declared)


@pytest.mark.parametrize("bad", [{}, {"function": {}}, {"name": 3}, "f"])
def test_a_declaration_without_a_name_is_refused_with_its_place(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"tools\[1\] has no function name"):
        ToolSet([REFS, bad])


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"size": "5"}, "bad_param_type"),
        ({"size": 5, "extra": 1}, "unknown_param"),
        ({"kind": "a"}, "missing_param"),
        ({"size": 5, "all": 3}, None),
    ],
)
def test_validation_is_opt_in_and_names_the_argument(arguments: Any, kind: str | None) -> None:
    text = written("qwen25", [("t", arguments)])
    assert toolparse.parse(text, "qwen25", [REFS]).errors == []
    checked = toolparse.parse(text, "qwen25", [REFS], validate=True)
    assert [e.kind for e in checked.errors] == ([kind] if kind else [])


def test_calls_beyond_the_limit_are_refused() -> None:
    text = written("qwen25", [("f", {}), ("g", {}), ("g", {})])
    parsed = toolparse.parse(text, "qwen25", TOOLS, max_calls=1)
    assert len(parsed.calls) == 1 and parsed.counts["too_many_calls"] == 2


def test_errors_carry_group_span_offset_and_a_sentence() -> None:
    text = 'é <tool_call>\n{"name": "f", "arguments": {"a": tru}}\n</tool_call>'
    error = toolparse.parse(text).errors[0]
    assert (error.kind, error.group, error.call) == ("bad_json", "syntax", 0)
    assert text[slice(*error.span)].startswith("<tool_call>")
    assert text.encode()[error.offset :].startswith(b"tru}")
    assert error.message.endswith(".") and "byte" in error.message
    assert error.to_dict()["kind"] == "bad_json"


def test_counts_name_every_kind_as_plain_integers() -> None:
    counts = toolparse.parse("<tool_call>\n{x\n</tool_call>\n</s>").counts
    assert set(counts) == set(toolparse.KINDS)
    assert counts["bad_json"] == 1 and counts["stop_token"] == 1
    assert sum(counts.values()) == 2


@pytest.mark.parametrize(
    ("call", "flags"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"a": "\\u00e9"}}\n</tool_call>', "escapes"),
        ('<tool_call>\n{"name": "f", "arguments": {"n": 1e3}}\n</tool_call>', "literal"),
        ('<tool_call>\n{"name": "f", "arguments": {"n":1}}\n</tool_call>', "json_spacing"),
        ('<tool_call>{"name": "f", "arguments": {"n": 1}}\n</tool_call>', "whitespace"),
        ('<tool_call>\n{"arguments": {}, "name": "f"}\n</tool_call>', "key_order"),
        ('<tool_call>\n{"name": "f", "parameters": {}}\n</tool_call>', "key"),
    ],
)
def test_a_spelling_that_the_template_would_not_write_is_flagged(call: str, flags: str) -> None:
    parsed = toolparse.parse(call)
    assert [f.kind for f in parsed.flags] == [f"noncanonical_{flags}"]
    assert parsed.errors == [] and not parsed.is_canonical
    assert parsed.canonical_text != call
    again = toolparse.parse(parsed.canonical_text or "")
    assert again.is_canonical and again.calls[0].arguments == parsed.calls[0].arguments


def test_a_text_in_another_format_says_which() -> None:
    text = written("qwen3_coder", [("f", {"a": "x"})]).replace("<tool_call>", "").strip()
    flag = toolparse.parse(text, "kimi_k2").flags[0]
    assert (flag.kind, flag.param) == ("looks_like", "qwen3_coder")


def test_trailing_text_and_fences_are_flagged_and_do_not_hinder() -> None:
    call = written("qwen25", [("f", {})])
    assert [f.kind for f in toolparse.parse(call + "\nDone.").flags] == ["trailing_text"]
    assert [f.kind for f in toolparse.parse(f"```\n{call}\n```\n").flags] == ["in_code_fence"]


def test_a_text_that_ends_inside_an_opening_tag_says_so() -> None:
    parsed = toolparse.parse("Let me look. <tool_ca<|im_end|>")
    assert [(f.kind, f.group) for f in parsed.flags][0] == ("partial_open_tag", "truncation")
    assert parsed.flags[0].span == (13, 21)
    assert toolparse.parse("a < b <tool").content == "a < b <tool"
    assert toolparse.parse("a <to").flags == []


def test_half_surrogates_in_the_text_are_replaced_and_never_raise() -> None:
    parsed = toolparse.parse("\ud83d" + written("qwen25", [("f", {"a": "x"})]))
    assert parsed.content == "\ufffd" and parsed.calls[0].span[0] == 1


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize(
    ("framed", "value"),
    [
        ("\n\r\n", "\r"),
        ("\nx\r\n", "x\r"),
        ("\r\nx\r\n", "x"),
        ("\r\nx\r\r\n", "x\r"),
        ("\n\n", ""),
        ("x\r\n", "x\r"),
    ],
)
def test_a_carriage_return_is_the_values_own_unless_the_frame_began_with_one(
    framed: str, value: str, mode: str
) -> None:
    text = (
        f"<tool_call>\n<function=f>\n<parameter=a>{framed}</parameter>\n</function>\n</tool_call>"
    )
    parsed = toolparse.parse(text, "qwen3_coder", None, mode)
    assert [call.arguments for call in parsed.calls] == [{"a": value}]

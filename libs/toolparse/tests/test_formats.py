"""Every format: its names, its canonical text, and the refusals of its family."""

from __future__ import annotations

from typing import Any

import pytest
import toolparse
from toolparse.grammars.table import SGLANG_NAMES, VLLM_NAMES, formats, grammar_of
from toolparse_support import GRAMMARS, TOOLS, attempts_of, written

CALLS: list[tuple[str, dict[str, Any]]] = [("f", {"a": "x", "n": 2}), ("g", {"q": "y"})]


def test_every_name_of_sglang_and_vllm_resolves() -> None:
    assert len(SGLANG_NAMES) == 44 and len(VLLM_NAMES) >= 58
    for name in (*SGLANG_NAMES, *VLLM_NAMES):
        assert name in formats()
        assert grammar_of(name)


@pytest.mark.parametrize("format", GRAMMARS)
def test_the_canonical_text_is_read_back_without_error_flag_or_content(format: str) -> None:
    parsed = toolparse.parse(written(format, CALLS[:1]), format, TOOLS)
    assert [(c.name, c.arguments) for c in parsed.calls] == CALLS[:1]
    assert parsed.errors == [] and parsed.content == ""
    assert parsed.is_canonical, parsed.flags
    assert parsed.canonical_text == written(format, CALLS[:1])


@pytest.mark.parametrize("format", GRAMMARS)
def test_spans_point_at_what_they_name(format: str) -> None:
    text = "é" * (format not in ("llama3", "xlam", "granite", "gpt-oss", "beam", "muse"))
    text += written(format, CALLS)
    parsed = toolparse.parse(text, format, TOOLS)
    assert [(c.name, c.arguments) for c in parsed.calls] == CALLS
    for call in parsed.calls:
        assert call.name_span and call.arguments_span
        assert text[slice(*call.name_span)] == call.name
        assert text[slice(*call.arguments_span)] == call.raw_arguments
        assert text.encode()[slice(*call.byte_span)].decode() == text[slice(*call.span)]
        assert set(call.value_spans or {}) == set(call.arguments or {})
    for left, right in zip(parsed.calls, parsed.calls[1:], strict=False):
        assert left.span[1] <= right.span[0] or left.span == right.span


@pytest.mark.parametrize("format", GRAMMARS)
def test_a_cut_text_executes_no_call_that_was_not_whole(format: str) -> None:
    text = written(format, CALLS)
    whole = toolparse.parse(text, format, TOOLS)
    for end in range(len(text)):
        parsed = toolparse.parse(text[:end], format, TOOLS)
        for call in parsed.calls:
            assert (call.name, call.arguments) in CALLS
        assert len(parsed.calls) <= len(whole.calls)


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize("format", GRAMMARS)
def test_an_undeclared_tool_is_refused_with_the_nearest_name(format: str, mode: str) -> None:
    text = written(format, [("get_wether", {"a": "x"})])
    parsed = toolparse.parse(text, format, [{"name": "get_weather"}], mode)
    assert parsed.calls == []
    assert [e.kind for e in parsed.errors] == ["unknown_tool"]
    assert "did you mean 'get_weather'" in parsed.errors[0].message


FAULTS = [
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=n>\nsoon\n</parameter>\n</function>\n"
     "</tool_call>", "bad_param_type"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=n>\n5.0\n</parameter>\n</function>\n"
     "</tool_call>", "bad_param_type"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=b>\nyes\n</parameter>\n</function>\n"
     "</tool_call>", "bad_param_type"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nls\n</function>\n</tool_call>",
     "malformed_tag"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nls\n</parameter>\n</function>\n",
     "unclosed"),
    ("qwen3_coder", "hi\n<function=f>\n<parameter=a>\nls\n</parameter>\n</function>",
     "missing_open_tag"),
    ("qwen3_coder", "<tool_call>\n</tool_call>", "empty_body"),
    ("glm45", "<tool_call>f\n<tool_call>a</arg_key><arg_value>x</arg_value></tool_call>",
     "malformed_tag"),
    ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x", "unclosed"),
    ("deepseekv4", '<｜DSML｜toolcalls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n'
     "</｜DSML｜tool_calls>", "malformed_tag"),
    ("deepseekv4", '<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="n" '
     'string="false">{</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>',
     "bad_param_type"),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
     '<|tool_call_argument_begin|>{"a": 1<|tool_call_end|><|tool_calls_section_end|>', "bad_json"),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>5<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>", "missing_name"),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": [1]}]', "args_not_object"),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1, "a": 2}', "duplicate_key"),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {"a": tru}}', "bad_json"),
    ("pythonic", '[f("ls")]', "positional_argument"),
    ("pythonic", '[f(a=f"{x}")]', "bad_literal"),
    ("pythonic", "[f(a=__import__('os'))]", "bad_literal"),
    ("pythonic", "[f(a=1, a=2)]", "duplicate_key"),
    ("gpt-oss", "<|channel|>commentary to=functions.f<|message|>{]<|call|>", "bad_json"),
    ("gemma4", "<|tool_call>call:f{a:nope}<tool_call|>", "bad_literal"),
    ("minimax-m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<n>x'
     "]<]minimax[>[</n>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>", "bad_param_type"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text", "kind"), FAULTS)
def test_each_fault_has_its_kind_and_executes_nothing(format: str, text: str, kind: str) -> None:
    parsed = toolparse.parse(text, format, TOOLS)
    assert [e.kind for e in parsed.errors] == [kind]
    assert parsed.calls == []
    start, end = parsed.errors[0].span
    assert 0 <= start <= end <= len(text)


def test_a_good_call_behind_a_bad_one_is_executed() -> None:
    for format in ("qwen25", "qwen3_coder", "glm45", "kimi_k2", "minimax-m2", "gemma4"):
        good = written(format, CALLS[:1])
        bad = {
            "qwen25": "<tool_call>\n{bad\n</tool_call>",
            "qwen3_coder": "<tool_call>\n<function=f>\n<b></function>\n</tool_call>",
            "glm45": "<tool_call>f\n<arg_kex></tool_call>",
            "kimi_k2": good.replace("{", "{{"),
            "minimax-m2": good.replace("<parameter", "<parametr"),
            "gemma4": "<|tool_call>call:f{:}<tool_call|>",
        }[format]
        parsed = toolparse.parse(f"{bad}\n{good}", format, TOOLS)
        assert [c.status == "ok" for c in parsed.attempts] == [False, True], format


def test_values_keep_their_bytes() -> None:
    raw = "\n  indented\n&lt;b&gt; 1.10 null </tool_call> <parameter> \n"
    for format in ("qwen3_coder", "glm45", "minimax-m2", "deepseekv4", "seed_oss", "step3"):
        parsed = toolparse.parse(written(format, [("f", {"a": raw})]), format, TOOLS)
        assert parsed.calls[0].arguments == {"a": raw}, format


def test_native_ids_are_kept() -> None:
    parsed = toolparse.parse(written("kimi_k2", CALLS), "kimi_k2")
    assert [c.id for c in parsed.calls] == ["functions.f:0", "functions.g:1"]


def test_bare_json_without_a_name_is_an_answer_and_no_call() -> None:
    parsed = toolparse.parse('{"answer": 5}', "llama3", TOOLS)
    assert parsed.attempts == [] and parsed.content == '{"answer": 5}'


def test_a_list_in_prose_is_content_where_it_does_not_read_as_calls() -> None:
    text = "see [f(x) and more] and [1, 2], [f(a=1"
    parsed = toolparse.parse(text, "pythonic", TOOLS)
    assert parsed.attempts == [] and parsed.content == text


def test_lenient_repairs_a_misspelled_wrapper_and_names_it() -> None:
    text = written("deepseekv4", CALLS[:1]).replace("<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>")
    call = toolparse.parse(text, "deepseekv4", TOOLS, "lenient").calls[0]
    assert (call.arguments, call.repairs) == ({"a": "x", "n": 2}, ("wrapper_spelling",))
    assert attempts_of(toolparse.parse(text, "deepseekv4", TOOLS).calls) == []

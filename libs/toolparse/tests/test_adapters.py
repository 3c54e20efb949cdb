"""Messages, actions, slime's call, token masks, markers as tokens, detection, the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import toolparse
from toolparse import explain
from toolparse_support import DECLARED, TOOLS, written

CALL = written("qwen25", [("f", {"a": "ls", "n": 2})])


def test_an_openai_message_has_content_calls_and_reasoning() -> None:
    message = toolparse.to_openai_message(toolparse.parse(f"<think>hm</think>hi{CALL}"))
    assert message == {
        "role": "assistant",
        "content": "hi",
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "f", "arguments": '{"a": "ls", "n": 2}'},
            }
        ],
    }


def test_an_openai_message_keeps_native_ids_and_spells_text_values_as_json() -> None:
    kimi = toolparse.parse(written("kimi_k2", [("f", {"a": "x"})]), "kimi_k2")
    assert toolparse.to_openai_message(kimi)["tool_calls"][0]["id"] == "functions.f:0"
    coder = toolparse.parse(written("qwen3_coder", [("f", {"a": 'q"'})]), "qwen3_coder", TOOLS)
    call = toolparse.to_openai_message(coder)["tool_calls"][0]["function"]
    assert json.loads(call["arguments"]) == {"a": 'q"'}
    assert toolparse.to_openai_message(toolparse.parse(""))["content"] == ""


def test_a_tau_action_is_the_first_call_or_a_response() -> None:
    action = toolparse.to_tau_action(toolparse.parse(f"so{CALL}"))
    assert action == {"name": "f", "kwargs": {"a": "ls", "n": 2}}
    action = toolparse.to_tau_action(toolparse.parse("Which order?"))
    assert action == {"name": "respond", "kwargs": {"content": "Which order?"}}


def test_parse_tools_gives_the_shape_that_slime_reads() -> None:
    text = "hi\n" + written("qwen25", [("g", {}), ("f", {"a": "x"}), ("nope", {})])
    assert toolparse.parse_tools(text, DECLARED, parser="qwen25") == {
        "normal_text": "hi",
        "calls": [
            {"tool_index": 1, "name": "g", "parameters": "{}"},
            {"tool_index": 0, "name": "f", "parameters": '{"a": "x"}'},
        ],
    }


def test_parse_tools_in_strict_mode_executes_nothing_off_the_grammar() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": "{}"}\n</tool_call>'
    assert toolparse.parse_tools(text, DECLARED, mode="strict")["calls"] == []


def test_masks_cover_whole_tokens_that_touch_a_part() -> None:
    text = "hi " + CALL
    parsed = toolparse.parse(text, "qwen25", TOOLS)
    offsets = [(i, min(i + 4, len(text))) for i in range(0, len(text), 4)]
    block = toolparse.token_mask(parsed, offsets, ["block"])
    assert block == [end > 3 for _, end in offsets]
    for what in ("name", "arguments", "values", "markup"):
        mask = toolparse.token_mask(parsed, offsets, [what])
        assert 0 < sum(mask) < len(mask)
    start, end = parsed.calls[0].name_span or (0, 0)
    name = toolparse.token_mask(parsed, offsets, ["name"])
    assert name == [left < end and start < right for left, right in offsets]


def test_values_and_markup_share_no_character() -> None:
    text = "é" + written("qwen3_coder", [("f", {"a": "ls", "n": 2})])
    parsed = toolparse.parse(text, "qwen3_coder", TOOLS)
    offsets = [(i, i + 1) for i in range(len(text))]
    parts = [toolparse.token_mask(parsed, offsets, [w]) for w in ("values", "name", "markup")]
    block = toolparse.token_mask(parsed, offsets)
    assert [sum(column) for column in zip(*parts, strict=True)] == [int(b) for b in block]


def test_an_empty_token_counts_only_strictly_inside() -> None:
    parsed = toolparse.parse(CALL)
    assert toolparse.token_mask(parsed, [(0, 0), (5, 5), (len(CALL), len(CALL))]) == [
        False,
        True,
        False,
    ]
    with pytest.raises(ValueError, match="unknown part 'blok'"):
        toolparse.token_mask(parsed, [], ["blok"])


def test_a_marker_typed_as_ordinary_tokens_is_content() -> None:
    text = f"é{CALL}\n{CALL}"
    second = text.rindex("<tool_call>")
    offsets = [(0, 1), (1, second), (second, second + 11), (second + 11, len(text))]
    tokens = toolparse.Tokens([5, 6, 151657, 7], offsets, {151657})
    parsed = toolparse.parse(text, "qwen25", TOOLS, tokens=tokens)
    assert [c.span for c in parsed.calls] == [(second, len(text))]
    assert parsed.content == f"é{CALL}\n"
    with pytest.raises(ValueError, match="2 token ids, but 1 offsets"):
        toolparse.Tokens([1, 2], [(0, 1)], set())


TEMPLATES = {
    "{{ '<tool_call>' }}": "qwen25",
    "<tool_call>\\n<function={{ n }}>\\n<parameter=": "qwen3_coder",
    "<arg_key>{{ k }}</arg_key>\n<arg_value>": "glm45",
    "<arg_key>{{ k }}</arg_key><arg_value>": "glm47",
    "{{ '[TOOL_CALLS] [' }}": "mistral",
    "<|start|>assistant<|channel|>commentary to=": "gpt-oss",
    "{{ m.content }}": None,
}


@pytest.mark.parametrize(("template", "format"), TEMPLATES.items())
def test_a_template_names_its_format(template: str, format: str | None) -> None:
    assert toolparse.detect(template) == format


def test_every_detected_format_is_known() -> None:
    from toolparse.grammars.detect import _RULES

    assert {name for name, _ in _RULES} <= set(toolparse.formats())


SHARED = {
    "deepseek-v3": "deepseekv3",
    "deepseek-v3.1": "deepseekv31",
    "deepseek-v3.2": "deepseekv32",
    "gemma-3": None,
    "glm-4.5": "glm45",
    "glm-4.7-flash": "glm47",
    "gpt-oss": "gpt-oss",
    "granite-4.0": "qwen25",
    "kimi-k2-instruct": "kimi_k2",
    "lfm2": "lfm2",
    "llama-3": None,
    "llama-3.1": "llama3",
    "llama-4": "pythonic",
    "minimax-m2": "minimax-m2",
    "mistral-nemo": "mistral",
    "nemotron-3-nano": "qwen3_coder",
    "phi-4": None,
    "phi-4-mini-vllm": "phi4_mini_json",
    "qwen2.5-instruct": "qwen25",
    "qwen3": "qwen25",
    "qwen3-coder": "qwen3_coder",
    "qwen3.5-4b": "qwen3_coder",
    "qwq-32b": "qwen25",
    "smollm2": None,
}


@pytest.mark.parametrize(("name", "format"), SHARED.items())
def test_public_templates_name_their_format(name: str, format: str | None) -> None:
    folder = os.environ.get("TURNWISE_SHARED_DATA")
    if not folder:
        pytest.skip("TURNWISE_SHARED_DATA is not set")
    template = Path(folder, "templates", f"{name}.jinja").read_text(encoding="utf-8")
    assert toolparse.detect(template) == format


def test_explain_shows_calls_errors_and_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(f"hi {CALL}\n<tool_call>\n{{bad\n</tool_call><|im_end|>", encoding="utf-8")
    assert explain.main(["--format", "qwen25", str(file)]) == 0
    shown = capsys.readouterr().out
    assert '{"a": "ls", "n": 2}' in shown and "bad_json" in shown and "stop_token" in shown


def test_explain_prints_json_and_detects_the_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text(CALL, encoding="utf-8")
    (tmp_path / "t.jinja").write_text("<tool_call>", encoding="utf-8")
    (tmp_path / "tools.json").write_text(json.dumps(DECLARED), encoding="utf-8")
    command = ["--template", str(tmp_path / "t.jinja"), "--tools", str(tmp_path / "tools.json")]
    assert explain.main([*command, "--json", str(tmp_path / "text.txt")]) == 0
    assert json.loads(capsys.readouterr().out)["attempts"][0]["status"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.txt", "--format", "qwen25"], "missing.txt"),
        (["{file}", "--format", "qwen26"], "did you mean 'qwen25'"),
        (["{file}"], "give --format NAME"),
    ],
)
def test_explain_answers_wrong_usage_with_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("x", encoding="utf-8")
    given = [a.format(file=tmp_path / "t.txt") for a in arguments]
    assert explain.main(given) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "no JSON that can be read"),
        (b"\xff", "a text file in UTF-8"),
        (b"5", "found int, not a list"),
        (b"null", "found NoneType, not a list"),
        (b'{"name": "f"}', "found dict, not a list"),
        (b"[5]", "tools[0] has no function name"),
        (b'[{"name": 3}]', "tools[0] has no function name"),
        (b"[" + b"9" * 5000 + b"]", "no JSON that can be read"),
    ],
)
def test_explain_names_the_flag_and_what_is_wrong_with_its_file(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("x", encoding="utf-8")
    (tmp_path / "tools.json").write_bytes(content)
    text, tools = str(tmp_path / "t.txt"), str(tmp_path / "tools.json")
    assert explain.main([text, "--format", "qwen25", "--tools", tools]) == 2
    error = capsys.readouterr().err
    assert f"--tools {tools}" in error and message in error and error.count("\n") == 1
    if content == b"\xff":
        assert explain.main([text, "--template", tools]) == 2
        assert f"--template {tools}" in capsys.readouterr().err
    assert explain.main([str(tmp_path), "--format", "qwen25"]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_explain_shows_escape_sequences_and_does_not_send_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.txt"
    file.write_text('\x1b]0;title\x07 <tool_call>\n{"name": "\x1b[2J"}', encoding="utf-8")
    assert explain.main([str(file), "--format", "qwen25"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b]0" not in shown and "\x1b[2J" not in shown and "\u241b]0;title" in shown


def test_explain_stops_quietly_when_its_reader_does(tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    file.write_text(f"{CALL}\n" * 20_000, encoding="utf-8")
    for extra in ([], ["--json"]):
        command = [sys.executable, "-m", "toolparse.explain", str(file), "--format", "qwen25"]
        process = subprocess.Popen(
            command + extra, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


def test_explain_says_in_one_line_that_the_disk_is_full(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    (tmp_path / "t.txt").write_text("x", encoding="utf-8")
    command = [sys.executable, "-m", "toolparse.explain", str(tmp_path / "t.txt")]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*command, "--format", "qwen25"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 4
    assert ended.stderr.startswith("explain: cannot write") and ended.stderr.count("\n") == 1

"""A call is executed behind a tag that is talked about, and behind one that was never finished."""

from __future__ import annotations

import pytest
import toolparse
from toolparse.grammars.table import grammar_of
from toolparse_support import GRAMMARS, TOOLS, view, written

DRAFT = [("f", {"a": "draft", "n": 3})]
FINALS = [[("g", {"q": "y"})], [("f", {"a": "final"})]]
# A call of theirs counts at the start of the text, or begins with a header without its tag.
AT_START = ("llama3", "granite", "xlam", "beam")
OPENED = [format for format in GRAMMARS if format not in AT_START]


def checked(text: str, format: str) -> toolparse.Parsed:
    """The parse of a text, the same from a stream of single characters."""
    parsed = toolparse.parse(text, format, TOOLS)
    stream = toolparse.Stream(format, TOOLS)
    early = [call.byte_span for c in text for call in stream.feed(c)]
    assert view(stream.finish()) == view(parsed)
    assert early == [c.byte_span for c in parsed.calls][: len(early)]
    return parsed


@pytest.mark.parametrize("format", OPENED)
def test_a_tag_in_prose_does_not_swallow_the_next_call(format: str) -> None:
    # Of Solar Open's tags the first two open calls, the others messages.
    tags = grammar_of(format).openers
    for opener in {tag.decode() for tag in (tags[:2] if format == "solar_open" else tags)}:
        for prose in (f"The {opener} tag is next:\n", f"Use {opener}, then {opener} twice.\n"):
            for final in FINALS:
                parsed = checked(prose + written(format, final), format)
                assert [c.arguments for c in parsed.calls] == [final[0][1]], opener


@pytest.mark.parametrize("format", [f for f in OPENED if grammar_of(f).think])
def test_a_tag_in_unopened_thinking_does_not_swallow_its_end(format: str) -> None:
    opener, close = grammar_of(format).openers[0], grammar_of(format).think_closes[0]
    text = f"Use {opener.decode()} for it.{close.decode()}{written(format, FINALS[0])}"
    parsed = checked(text, format)
    assert [c.arguments for c in parsed.calls] == [{"q": "y"}]
    assert parsed.reasoning == f"Use {opener.decode()} for it." and parsed.content == ""


@pytest.mark.parametrize("format", [f for f in OPENED if f not in ("pythonic", "muse")])
def test_a_call_that_was_never_finished_does_not_swallow_the_next_one(format: str) -> None:
    draft = written(format, DRAFT)
    for final in FINALS:
        for end in range(1, len(draft)):
            text = draft[:end] + "\n" + written(format, final)
            parsed = toolparse.parse(text, format, TOOLS)
            assert [c.arguments for c in parsed.calls][-1:] == [final[0][1]], draft[:end]


SECTIONS = ("minimax-m2", "deepseekv4", "dots", "kimi_k2", "deepseekv31", "step3", "hunyuan")


@pytest.mark.parametrize("format", (*SECTIONS, "minimax-m3", "kimi_k3"))
def test_a_broken_call_does_not_swallow_the_next_one_of_its_section(format: str) -> None:
    text = written(format, [*DRAFT, *FINALS[0]])
    for slip in ("three", "{", '"'):
        broken = text.replace("3", slip, 1)
        parsed = checked(broken, format)
        assert [c.arguments for c in parsed.calls][-1:] == [{"q": "y"}], broken


def test_a_mention_before_a_call_is_content_and_no_error() -> None:
    text = "The <tool_call> tag is next:\n" + written("qwen25", FINALS[0])
    parsed = checked(text, "qwen25")
    assert parsed.errors == [] and parsed.content == "The <tool_call> tag is next:\n"


def test_a_broken_block_ends_before_the_next_call_and_keeps_its_error() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"a": "x}}\n' + written("qwen25", FINALS[0])
    parsed = checked(text, "qwen25")
    assert [(e.kind, e.call) for e in parsed.errors] == [("bad_json", 0)]
    assert parsed.attempts[0].raw == text[: text.index("<tool_call>", 5)]


def test_a_call_inside_a_string_of_a_whole_call_is_text() -> None:
    for format in ("qwen25", "kimi_k2", "deepseekv31", "mistral"):
        value = written(format, FINALS[0])
        parsed = checked(written(format, [("f", {"a": value})]), format)
        assert [c.arguments for c in parsed.calls] == [{"a": value}]

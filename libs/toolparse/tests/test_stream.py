"""Streams: what is given when, and what a cut in the wrong place must not do."""

from __future__ import annotations

import pytest
import toolparse
from toolparse_support import GRAMMARS, TOOLS, view, written

CALLS = [("f", {"a": "x"}), ("g", {"q": "y"})]


@pytest.mark.parametrize("format", GRAMMARS)
def test_calls_are_given_as_they_close_and_not_twice(format: str) -> None:
    text = written(format, CALLS) + ("\n" if format != "gpt-oss" else "")
    stream = toolparse.Stream(format, TOOLS)
    seen = [call for c in text for call in stream.feed(c)]
    final = stream.finish()
    assert [(c.name, c.arguments) for c in final.calls] == CALLS
    assert [c.byte_span for c in seen] == [c.byte_span for c in final.calls][: len(seen)]
    # The fence of this format begins as it ends, so its block is looked at again later.
    assert len(seen) >= len(CALLS) - 1 or format == "command_r_plus"


def test_done_comes_with_the_close_tag_of_the_nth_call() -> None:
    stream = toolparse.Stream("qwen25", TOOLS, limit=2)
    text = written("qwen25", CALLS)
    for c in text[:-1]:
        stream.feed(c)
        assert not stream.done
    assert [c.name for c in stream.feed(text[-1])] == ["g"]
    assert stream.done and len(stream.calls) == 2


def test_done_does_not_count_refused_calls() -> None:
    stream = toolparse.Stream("qwen25", TOOLS, limit=1)
    assert stream.feed("<tool_call>\n{bad\n</tool_call>") == []
    assert not stream.done and len(stream.attempts) == 1


def test_a_close_tag_in_a_value_does_not_end_the_call() -> None:
    stream = toolparse.Stream("qwen25", TOOLS, limit=1)
    text = written("qwen25", [("f", {"a": "see </tool_call> there"})])
    at = text.index("there")
    assert stream.feed(text[:at]) == [] and not stream.done
    assert len(stream.feed(text[at:])) == 1 and stream.done


def test_a_character_may_be_cut_in_its_middle() -> None:
    text = "é \U0001f600 " + written("glm45", [("f", {"a": "日本\U0001f600"})])
    stream = toolparse.Stream("glm45", TOOLS)
    for byte in text.encode():
        stream.feed(bytes([byte]))
    parsed = stream.finish()
    assert parsed.calls[0].arguments == {"a": "日本\U0001f600"}
    assert parsed.content == "é \U0001f600 "


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    stream = toolparse.Stream()
    stream.feed(b"a\xff")
    stream.feed(b"\xe2\x82")
    assert stream.finish().content == "a\ufffd\ufffd"


def test_the_start_of_a_tag_that_is_text_stays_text() -> None:
    stream = toolparse.Stream("qwen25", TOOLS)
    stream.feed("use <tool")
    stream.feed("_box> now")
    parsed = stream.finish()
    assert parsed.attempts == [] and parsed.content == "use <tool_box> now"


def test_text_between_chunks_of_plain_content_is_not_lost() -> None:
    stream = toolparse.Stream("qwen25", TOOLS)
    for word in ["plain ", "words ", "then <", "b> ", "more ", written("qwen25", CALLS[:1])]:
        stream.feed(word)
    assert [c.name for c in stream.calls] == ["f"]
    assert stream.finish().content == "plain words then <b> more "


def test_a_stream_of_nothing_is_an_empty_text() -> None:
    assert view(toolparse.Stream().finish()) == view(toolparse.parse(""))
    stream = toolparse.Stream()
    stream.feed("")
    stream.feed(b"")
    assert stream.finish().content == ""


def test_thinking_that_the_prompt_opened_holds_calls_back() -> None:
    stream = toolparse.Stream("qwen25", TOOLS, thinking=True, limit=1)
    stream.feed("hm " + written("qwen25", CALLS[:1]))
    assert not stream.done
    stream.feed("</think>")
    stream.feed(written("qwen25", CALLS[:1]))
    assert stream.done
    assert [c.status for c in stream.finish().attempts] == ["in_reasoning", "ok"]

"""Reasoning, for every row of the table of formats: what is thought is neither done nor said."""

from __future__ import annotations

import pytest
import toolparse
from toolparse.grammars.table import ALIASES, FORMATS, formats, reasoning_tags
from toolparse_support import GRAMMARS, TOOLS, view, written

DRAFT = [("f", {"a": "draft"})]
FINAL = [("f", {"a": "final"})]
PAIRS = [
    (format, *pair)
    for format in GRAMMARS
    if not FORMATS[format].channels
    for pair in reasoning_tags(format)
]
CHANNELS = [format for format in GRAMMARS if FORMATS[format].channels]


def streamed(text: str, format: str, mode: str = "strict", thinking: bool = False) -> tuple:  # type: ignore[type-arg]
    """What a stream of single characters gives: (the view of the whole, calls given early)."""
    stream = toolparse.Stream(format, TOOLS, mode, thinking=thinking)
    early = [call.arguments for c in text for call in stream.feed(c)]
    return view(stream.finish()), early


def test_every_row_names_its_reasoning_tags_or_says_that_it_has_none() -> None:
    assert {format for format in FORMATS if not reasoning_tags(format)} == {
        "trinity",
        "functionary_v3.2",
    }
    for name in formats():
        assert reasoning_tags(name) == FORMATS[ALIASES.get(name, name)].think
    for format, first, last in PAIRS:
        assert first and last and first != last, format


@pytest.mark.parametrize(("format", "first", "last"), PAIRS)
def test_a_call_in_closed_thinking_is_neither_executed_nor_content(
    format: str, first: str, last: str
) -> None:
    thought = f"Perhaps {written(format, DRAFT)} or not."
    text = f"{first}{thought}{last}Hello."
    parsed = toolparse.parse(text, format, TOOLS)
    assert parsed.calls == []
    assert {e.kind for e in parsed.errors} <= {"in_reasoning"}
    assert (parsed.reasoning, parsed.content) == (thought, "Hello.")
    assert streamed(text, format) == (view(parsed), [])


@pytest.mark.parametrize(("format", "first", "last"), PAIRS)
def test_a_thought_that_is_a_call_alone_is_not_executed(format: str, first: str, last: str) -> None:
    parsed = toolparse.parse(f"{first}{written(format, DRAFT)}{last}Hello.", format, TOOLS)
    assert parsed.calls == [] and parsed.content == "Hello."
    assert parsed.reasoning == written(format, DRAFT)


@pytest.mark.parametrize(("format", "first", "last"), PAIRS)
def test_thinking_that_the_prompt_opened_ends_at_any_of_the_close_tags(
    format: str, first: str, last: str
) -> None:
    text = f"Perhaps {written(format, DRAFT)} or not.{last}{written(format, FINAL)}"
    for thinking in (True, False):
        parsed = toolparse.parse(text, format, TOOLS, thinking=thinking)
        if not thinking and parsed.calls[:1] and parsed.calls[0].arguments == DRAFT[0][1]:
            # Before the close tag comes, nothing tells this text from a call in the answer.
            continue
        assert [c.arguments for c in parsed.calls] == [FINAL[0][1]], format
        assert parsed.reasoning == f"Perhaps {written(format, DRAFT)} or not."
        assert streamed(text, format, thinking=thinking)[0] == view(parsed)


@pytest.mark.parametrize(("format", "first", "last"), PAIRS)
def test_a_refused_draft_before_a_lone_close_tag_is_reasoning(
    format: str, first: str, last: str
) -> None:
    draft = written(format, [("no_such_tool", {"a": "x"})])
    text = f"Perhaps {draft}{last}{written(format, FINAL)}"
    parsed = toolparse.parse(text, format, TOOLS)
    assert [c.arguments for c in parsed.calls] == [FINAL[0][1]]
    assert {e.kind for e in parsed.errors} <= {"in_reasoning"}
    assert parsed.reasoning == f"Perhaps {draft}" and parsed.content == ""
    whole, early = streamed(text, format)
    assert whole == view(parsed) and early in ([], [FINAL[0][1]])


@pytest.mark.parametrize(("format", "first", "last"), PAIRS)
def test_thinking_that_never_ends_holds_its_calls_unless_the_template_calls_there(
    format: str, first: str, last: str
) -> None:
    text = f"{first}Perhaps\n{written(format, DRAFT)}"
    strict = toolparse.parse(text, format, TOOLS)
    if format == "apertus2509":
        assert [c.arguments for c in strict.calls] == [DRAFT[0][1]]
        assert strict.reasoning == "Perhaps\n" and strict.calls[0].repairs == ()
    else:
        assert strict.calls == []
        assert strict.content == ""
    assert streamed(text, format)[0] == view(strict)


@pytest.mark.parametrize("format", CHANNELS)
def test_a_channel_is_reasoning_by_its_header(format: str) -> None:
    first, last = reasoning_tags(format)[0]
    spoken = {
        "gpt-oss": "<|start|>assistant<|channel|>final<|message|>Hello.<|return|>",
        "beam": "<|start|>assistant<|channel|>final<|message|>Hello.<|return|>",
        "solar_open": "<|begin|>assistant<|content|>Hello.<|end|>",
        "muse": "<|start|>assistant to=user<|message|>Hello.<|eom|>",
        "inkling": "<|message_model|><|content_text|>Hello.<|end_message|>"
        "<|content_model_end_sampling|>",
    }[format]
    text = f"{first}plan{last}{spoken}"
    parsed = toolparse.parse(text, format, TOOLS)
    assert (parsed.reasoning, parsed.content, parsed.calls) == ("plan", "Hello.", [])
    assert streamed(text, format) == (view(parsed), [])


def test_the_answer_of_a_prompt_that_ends_with_the_header_of_a_message_is_read() -> None:
    text = 'f<|content_invoke_tool_json|>{"name": "f", "args": {"a": "x"}}<|end_message|>'
    parsed = toolparse.parse(text, "inkling", TOOLS)
    assert [(c.name, c.arguments) for c in parsed.calls] == [("f", {"a": "x"})]
    assert parsed.content == ""


def test_tags_around_visible_text_are_no_content() -> None:
    text = "<|START_THINKING|>plan<|END_THINKING|><|START_RESPONSE|>Hi.<|END_RESPONSE|>"
    parsed = toolparse.parse(text, "cohere_command4", TOOLS)
    assert (parsed.reasoning, parsed.content) == ("plan", "Hi.")
    parsed = toolparse.parse("<think>p</think><response>Hi.</response></s>", "ernie45", TOOLS)
    assert (parsed.reasoning, parsed.content) == ("p", "Hi.")


def test_a_lone_close_tag_behind_an_executed_call_is_content() -> None:
    text = written("qwen25", FINAL) + "</think>done"
    parsed = toolparse.parse(text, "qwen25", TOOLS)
    assert len(parsed.calls) == 1 and parsed.content == "</think>done"


def test_a_kind_of_tag_that_is_never_closed_leaves_the_others_to_work() -> None:
    text = "a <ifm|think> b <ifm|think_fast>plan</ifm|think_fast>c"
    parsed = toolparse.parse(text, "k2_horizon", TOOLS)
    assert parsed.reasoning == "plan" and parsed.content == "a <ifm|think> b c"

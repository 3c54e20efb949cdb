"""One million bytes of the worst text. The bound is a hundred times what linear reading takes
and a hundredth of what quadratic reading would."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import toolparse
from toolparse.grammars.table import grammar_of
from toolparse_support import TOOLS, written

MILLION = 1_000_000
BOUND_SECONDS = 30.0

FORMATS = (
    "qwen25",
    "qwen3_coder",
    "glm45",
    "deepseekv4",
    "kimi_k2",
    "pythonic",
    "llama3",
    "mistral",
    "minimax-m2",
    "minimax-m3",
    "gemma4",
)


def worst(format: str) -> Iterator[str]:
    """Texts that make a reader look twice: openers, and values that never end."""
    opener = grammar_of(format).openers[0].decode()
    one = written(format, [("f", {"a": "x"})])
    yield opener * (MILLION // len(opener))
    yield "<think>" * (MILLION // 7)
    # A value that is no call, behind each opener.
    yield f"{opener}1" * (MILLION // (len(opener) + 1))
    yield one[:-2] * (MILLION // len(one))
    yield opener + '{"a":' * (MILLION // 5)
    yield opener + '{"name": "f", "arguments": {"a": "' + "</tool_call>" * (MILLION // 12)
    yield one.replace("x", "</s>" * (MILLION // 4))
    # Tags that are talked about, and calls that are never finished, before a call.
    yield f"{opener} and " * (MILLION // (len(opener) + 5)) + one
    half = one[: len(one) // 2]
    yield half * (MILLION // len(half)) + one
    if format == "qwen3_coder":
        # Values that none of the next calls ends, for their tags stand in a line.
        yield opener + "<function=g><parameter=a>" * (MILLION // 25) + "\n<parameter=a>" * 2


@pytest.mark.parametrize("format", FORMATS)
def test_a_million_bytes_of_the_worst_text_take_linear_time(format: str) -> None:
    for text in worst(format):
        start = time.perf_counter()
        toolparse.parse(text, format, TOOLS)
        assert time.perf_counter() - start < BOUND_SECONDS


@pytest.mark.parametrize("format", FORMATS[:3])
def test_a_stream_of_the_worst_text_takes_linear_time(format: str) -> None:
    for text in worst(format):
        stream = toolparse.Stream(format, TOOLS)
        start = time.perf_counter()
        for at in range(0, len(text), 64):
            stream.feed(text[at : at + 64])
        stream.finish()
        assert time.perf_counter() - start < BOUND_SECONDS


def test_a_stream_that_ends_in_white_space_takes_linear_time() -> None:
    stream = toolparse.Stream("xlam", TOOLS)
    start = time.perf_counter()
    for chunk in ("(", *["\n" * 64] * 8000):
        stream.feed(chunk)
    assert time.perf_counter() - start < BOUND_SECONDS
    assert stream.finish().content.strip() == "("


def test_nesting_and_numbers_have_limits_that_are_errors() -> None:
    deep = '<tool_call>\n{"name": "f", "arguments": {"o": ' + "[" * 200_000 + "\n</tool_call>"
    long = '<tool_call>\n{"name": "f", "arguments": {"n": ' + "9" * 200_000 + "}}\n</tool_call>"
    for text, kind in ((deep, "too_deep"), (long, "too_long")):
        for mode in ("strict", "lenient"):
            assert toolparse.parse(text, "qwen25", TOOLS, mode).errors[0].kind == kind

"""Construct and parse against the floor: `str.find` and the json module, no checks, no spans.

    pytest benchmarks/toolparse --benchmark-enable --benchmark-timer=time.process_time
    ./pants test --force --output=all benchmarks/toolparse -- --benchmark-enable

`parse` reads and checks the text; `arguments` also decodes the arguments of every call, which
is what the floor does. sglang, vLLM's and other parsers: see peers.py.
"""

from __future__ import annotations

import pytest
import toolparse
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.toolparse.workload import FORMATS, SIZES, TOOLS, calls, floor, text

TOOLSET = toolparse.ToolSet(TOOLS)


@pytest.mark.parametrize("size", SIZES)
def test_floor(benchmark: BenchmarkFixture, size: int) -> None:
    benchmark.group = f"qwen25 {size} B"
    assert benchmark(floor, text("qwen25", size)) == calls(size)[1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("format", FORMATS)
def test_parse(benchmark: BenchmarkFixture, format: str, size: int) -> None:
    benchmark.group = f"{format} {size} B"
    parsed = benchmark(toolparse.parse, text(format, size), format, TOOLSET)
    assert [(c.name, c.arguments) for c in parsed.calls] == calls(size)[1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("format", ["qwen25", "qwen3_coder"])
def test_parse_and_arguments(benchmark: BenchmarkFixture, format: str, size: int) -> None:
    benchmark.group = f"{format} {size} B"
    written = text(format, size)

    def read() -> list[tuple[str | None, object]]:
        parsed = toolparse.parse(written, format, TOOLSET)
        return [(call.name, call.arguments) for call in parsed.calls]

    assert benchmark(read) == calls(size)[1]


@pytest.mark.parametrize("format", ["qwen25", "qwen3_coder", "pythonic"])
def test_stream_of_chunks_of_four_characters(benchmark: BenchmarkFixture, format: str) -> None:
    benchmark.group = "stream 20,000 B"
    written = text(format, SIZES[2])
    chunks = [written[i : i + 4] for i in range(0, len(written), 4)]

    def read() -> toolparse.Stream:
        stream = toolparse.Stream(format, TOOLSET)
        for chunk in chunks:
            stream.feed(chunk)
        return stream

    assert len(benchmark(read).finish().calls) == 2

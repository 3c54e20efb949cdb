"""Other parsers on the same texts, all in one run and one process.

A parser that cannot be imported is left out. An environment for it, on a machine without a
GPU (sglang needs none of its GPU packages to parse, but its package imports them; an empty
package `sglang` in front, whose `__path__` is the installed folder, leaves that import out):

    pip install --no-deps sglang==0.5.23 renderers==0.1.12
    pip install transformers==5.24.0 pydantic openai msgspec orjson partial_json_parser regex \
        numpy httpx jinja2 libs/toolparse
    python -m benchmarks.toolparse.peers [qwen25 ...]

Microseconds of CPU time, the best of several repeats: parse is construct + parse as a server
does; the arguments of toolparse are decoded in the column behind. The factor is peer / parse.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import toolparse

from benchmarks.toolparse.workload import FORMATS, SIZES, TOOLS, floor, text

REPEATS = 5
SECONDS = 0.05


def best(function: Callable[[], Any]) -> float:
    """Microseconds per call: the best of REPEATS, each about SECONDS long."""
    function()
    timer = timeit.Timer(function, timer=time.process_time)
    once = max(timer.timeit(1), 1e-7)
    number = max(1, int(SECONDS / once))
    return min(timer.repeat(REPEATS, number)) / number * 1e6


def sglang(format: str, written: str) -> Callable[[], Any]:
    tool_type = importlib.import_module("sglang.srt.entrypoints.openai.protocol").Tool
    parser_type = importlib.import_module(
        "sglang.srt.function_call.function_call_parser"
    ).FunctionCallParser

    tools = [tool_type.model_validate(tool) for tool in TOOLS]
    return lambda: parser_type(tools, format).parse_non_stream(written)


def sglang_stream(format: str, written: str) -> Callable[[], Any]:
    tool_type = importlib.import_module("sglang.srt.entrypoints.openai.protocol").Tool
    parser_type = importlib.import_module(
        "sglang.srt.function_call.function_call_parser"
    ).FunctionCallParser

    tools = [tool_type.model_validate(tool) for tool in TOOLS]
    chunks = [written[i : i + 4] for i in range(0, len(written), 4)]

    def read() -> None:
        parser = parser_type(tools, format)
        for chunk in chunks:
            parser.parse_stream_chunk(chunk)

    return read


def find_and_orjson(format: str, written: str) -> Callable[[], Any]:
    orjson = importlib.import_module("orjson")
    if format != "qwen25":
        raise ImportError("the floor reads qwen25")
    return lambda: floor(written, orjson.loads)


def find_and_json(format: str, written: str) -> Callable[[], Any]:
    if format != "qwen25":
        raise ImportError("the floor reads qwen25")
    return lambda: floor(written, json.loads)


def transformers(format: str, written: str) -> Callable[[], Any]:
    module = importlib.import_module("transformers.utils.chat_parsing.response_parser")
    parse_response = module.parse_response
    if format != "qwen25":
        raise ImportError("one template is enough")
    start = "<|im_start|>assistant\n"
    calls = {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": True}
    template = {
        "defaults": {"role": "assistant"},
        "start_anchor": start,
        "fields": {"content": {}, "tool_calls": calls},
    }
    return lambda: parse_response(written, template, prefix=start)


class Characters:
    """A tokenizer with one id a character, and one for each tag; decoding is a join, so a
    real tokenizer only adds to the time."""

    tags = ("<tool_call>", "</tool_call>", "<think>", "</think>")

    def encode(self, written: str, add_special_tokens: bool = False) -> list[int]:
        ids, at = [], 0
        while at < len(written):
            tag = next((t for t in self.tags if written.startswith(t, at)), None)
            ids.append(0x110000 + self.tags.index(tag) if tag else ord(written[at]))
            at += len(tag) if tag else 1
        return ids

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(i) if i < 0x110000 else self.tags[i - 0x110000] for i in ids)


def renderers(format: str, written: str) -> Callable[[], Any]:
    parsing = importlib.import_module("renderers.parsing")
    tokenizer = Characters()
    ids = tokenizer.encode(written)
    tags = {"tool_call_id": 0x110000, "tool_call_end_id": 0x110001}
    if format == "qwen25":
        return lambda: parsing.parse_qwen3(tokenizer, ids, stop_ids=set(), **tags)
    if format != "qwen3_coder":
        raise ImportError("two formats are enough")
    think = {"think_id": 0x110002, "think_end_id": 0x110003}
    functions = [tool["function"] for tool in TOOLS]
    return lambda: parsing.parse_qwen35(
        tokenizer, ids, stop_ids=set(), tools=functions, **tags, **think
    )


PEERS = (sglang, transformers, renderers, find_and_json, find_and_orjson)


def rows(formats: tuple[str, ...]) -> Iterator[str]:
    """One line per format and size."""
    toolset = toolparse.ToolSet(TOOLS)
    for format in formats:
        for size in SIZES:
            written = text(format, size)

            def decoded(written: str = written, format: str = format) -> list[Any]:
                return [c.arguments for c in toolparse.parse(written, format, toolset).calls]

            ours = best(functools.partial(toolparse.parse, written, format, toolset))
            loose = best(functools.partial(toolparse.parse, written, format, TOOLS))
            line = f"{format:12} {len(written):6} B  parse {ours:.1f}  declared anew {loose:.1f}"
            line += f"  arguments {best(decoded):.1f}"
            for peer in PEERS:
                try:
                    measured = best(peer(format, written))
                except Exception as error:  # a peer that is not installed or cannot read this
                    if not isinstance(error, ImportError):
                        line += f"  {peer.__name__} {type(error).__name__}"
                    continue
                line += f"  {peer.__name__} {measured:.1f} ({measured / ours:.1f}x)"
            yield line


def streams(formats: tuple[str, ...]) -> Iterator[str]:
    """Streaming in chunks of four characters, microseconds per chunk."""
    toolset = toolparse.ToolSet(TOOLS)
    for format in formats:
        for size in SIZES[:2]:
            written = text(format, size)
            chunks = [written[i : i + 4] for i in range(0, len(written), 4)]

            def read(chunks: list[str] = chunks, format: str = format) -> None:
                stream = toolparse.Stream(format, toolset)
                for chunk in chunks:
                    stream.feed(chunk)

            ours = best(read) / len(chunks)
            line = f"{format:12} {len(written):6} B  stream {ours:.2f} a chunk"
            try:
                peer = best(sglang_stream(format, written)) / len(chunks)
                line += f"  sglang {peer:.2f} ({peer / ours:.1f}x)"
            except Exception as error:  # as above
                line += f"  sglang {type(error).__name__}"
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.toolparse.peers")
    parser.add_argument("formats", nargs="*", default=FORMATS, help="names of formats")
    formats = tuple(parser.parse_args().formats)
    for line in rows(formats):
        print(line, flush=True)
    for line in streams(formats):
        print(line, flush=True)


if __name__ == "__main__":
    main()

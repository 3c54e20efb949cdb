"""parse, parse_many, parse_tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from toolparse.compatibility import sglang as sglang_mode
from toolparse.driver.run import Run
from toolparse.driver.tools import ToolSet, compiled
from toolparse.grammars.table import grammar_of
from toolparse.result.masks import Tokens
from toolparse.result.model import Call, Parsed, Source

MODES: Final = ("strict", "lenient", "sglang")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
Tools = ToolSet | Iterable[Mapping[str, Any]]


def encoded(text: str) -> bytes:
    """UTF-8; half surrogates become U+FFFD, which keeps both lengths."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text).encode()


def source_of(text: str | bytes) -> Source:
    """The text as a source; bytes that are no UTF-8 become U+FFFD."""
    if isinstance(text, str):
        return Source(encoded(text))
    return Source(text.decode("utf-8", "replace").encode())


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}: want one of {', '.join(MODES)}")


def parse(
    text: str | bytes,
    format: str = "qwen25",
    tools: Tools | None = None,
    mode: str = "strict",
    *,
    thinking: bool = False,
    tokens: Tokens | None = None,
    max_calls: int | None = None,
    validate: bool = False,
) -> Parsed:
    """Reads what a model wrote. Never raises on `text`; linear in its length.

    tools: what may be called; None: any name is taken. mode: "strict" executes what the
    grammar allows; "lenient" adds named repairs; "sglang" returns what sglang returns.
    thinking: the prompt opened the think block. tokens: the tokens of `text`; a marker
    then counts only where a special token begins. max_calls: calls beyond it are refused.
    validate: also holds JSON arguments against the schema. Raises ValueError for an
    unknown format or mode, and for tools without a name.
    """
    grammar = grammar_of(format)
    check_mode(mode)
    source = source_of(text)
    toolset = compiled(tools)
    if mode == "sglang":
        return sglang(format, source, toolset, False)
    if tokens is None and max_calls is None and not validate:
        fast = grammar.fast(source, toolset, thinking)
        if fast is not None:
            return fast
    run = Run(
        grammar,
        source,
        toolset,
        mode == "lenient",
        thinking,
        special=tokens.marker_bytes(source) if tokens is not None else None,
        max_calls=max_calls,
        validate=validate,
    )
    run.advance(True)
    return run.result()


def sglang(format: str, source: Source, toolset: ToolSet | None, streamed: bool) -> Parsed:
    """What sglang returns, as a `Parsed`; errors and attempts are those of `lenient`."""
    run, (content, items) = sglang_mode.view(format, source, toolset or ToolSet(()), streamed)
    calls = [
        Call(
            source,
            position,
            block,
            name=name,
            raw_arguments=spelled,
            arguments=loaded(spelled),
            tool_index=index,
        )
        for position, (name, spelled, index, block) in enumerate(items)
    ]
    return run.result(content, calls)


def loaded(text: str) -> Any:
    """The arguments that a JSON text gives, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def parse_many(
    texts: Sequence[str | bytes],
    format: str = "qwen25",
    tools: Tools | None = None,
    mode: str = "strict",
    **options: Any,
) -> list[Parsed]:
    """`parse` for many texts with one set of tools."""
    toolset = compiled(tools)
    return [parse(text, format, toolset, mode, **options) for text in texts]


def parse_tools(
    response: str, tools: Tools, parser: str = "qwen25", mode: str = "sglang"
) -> dict[str, Any]:
    """What slime's tau-bench example gets from sglang: `normal_text` and `calls`.

    Each call is {"tool_index", "name", "parameters"} with the arguments as JSON text.
    """
    toolset = compiled(tools) or ToolSet(())
    parsed = parse(response, parser, toolset, mode)
    return {
        "normal_text": parsed.content,
        "calls": [
            {
                "tool_index": call.tool_index
                if mode == "sglang"
                else toolset.positions.get(call.name or "", -1),
                "name": call.name,
                "parameters": call.arguments_json,
            }
            for call in parsed.calls
        ],
    }

"""The texts that all parsers read: prose and one or two calls, of about 200, 2,000 and 20,000
bytes. The long argument is a source file."""

from __future__ import annotations

import json
from typing import Any

SIZES = (200, 2_000, 20_000)
FORMATS = (
    "qwen25",
    "qwen3_coder",
    "glm45",
    "kimi_k2",
    "deepseekv3",
    "minimax-m2",
    "mistral",
    "llama3",
    "gpt-oss",
    "pythonic",
)
# These begin with the call.
BARE = ("llama3", "gpt-oss", "pythonic")


def tool(name: str, required: list[str], **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [
    tool("run", ["cmd"], cmd="string", timeout="integer"),
    tool("write_file", ["path", "content"], path="string", content="string"),
    tool("search", ["q"], q="string", k="integer", opts="object"),
]
PROSE = "I will look at the directory first and then write the file that was asked for. "
BLOCK = (
    "def step_{i}(index):\n"
    + '    value = compute("item", index + 1)  # keep {{braces}} and [brackets]\n' * 3
    + "    return value\n\n"
)


def source(size: int) -> str:
    """A source file of `size` characters."""
    text = "".join(BLOCK.format(i=i) for i in range(size // 200 + 1))
    return text[:size]


def calls(size: int) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """(prose, calls) of the text of about `size` bytes."""
    run = ("run", {"cmd": "ls -la /srv/app", "timeout": 30})
    if size == SIZES[0]:
        return PROSE[:60], [run]
    prose, length = (PROSE * 4, 1_300) if size == SIZES[1] else (PROSE * 100, 11_000)
    return prose, [run, ("write_file", {"path": "app.py", "content": source(length)})]


def text(format: str, size: int) -> str:
    """The text in a format."""
    from toolparse.grammars.table import grammar_of

    prose, written = calls(size)
    return ("" if format in BARE else prose + "\n") + grammar_of(format).write(written)


def floor(text: str, loads: Any = json.loads) -> list[tuple[str, Any]]:
    """The least that reads qwen25: find the tags, load the JSON between them."""
    found, at = [], text.find("<tool_call>")
    while at >= 0:
        end = text.find("</tool_call>", at)
        value = loads(text[at + 11 : end])
        found.append((value["name"], value["arguments"]))
        at = text.find("<tool_call>", end)
    return found

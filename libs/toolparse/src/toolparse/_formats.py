"""The table of formats: every name of sglang and vLLM, and the grammar that reads it."""

from __future__ import annotations

import difflib
from typing import Final

from toolparse._run import Grammar
from toolparse._tagged_json import TaggedJson

_HERMES = TaggedJson(b"<tool_call>", b"</tool_call>")

TABLE: Final[dict[str, Grammar]] = {
    "qwen25": _HERMES,
    "qwen": _HERMES,
    "hermes": _HERMES,
}


def formats() -> tuple[str, ...]:
    """The names that `parse` knows."""
    return tuple(TABLE)


def grammar_of(name: str) -> Grammar:
    """The grammar of a format; ValueError names the nearest format."""
    grammar = TABLE.get(name)
    if grammar is not None:
        return grammar
    near = difflib.get_close_matches(str(name), TABLE, 1)
    hint = f"did you mean {near[0]!r}?" if near else "see toolparse.formats()."
    raise ValueError(f"unknown tool-call format {name!r}: {hint}")

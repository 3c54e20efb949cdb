"""One sentence per error, fit to be sent back to the model."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from toolparse.driver.tools import ToolSet
    from toolparse.grammars.grammar import Fault

_SENTENCES: Final = {
    "unclosed": "The tool call was cut off before it ended.",
    "empty_body": "The tool call is empty.",
    "bad_json": "The tool call is not valid JSON",
    "extra_data": "There is text after the call inside the same block; write one call per block.",
    "not_object": "The tool call must be a JSON object.",
    "bad_literal": "An argument is not a literal value",
    "malformed_tag": "A tag of the tool call is malformed or missing",
    "missing_open_tag": "The tag that opens the tool call is missing.",
    "too_deep": "The tool call is nested more than 128 levels deep.",
    "too_long": "A number in the tool call is too long.",
    "missing_name": "The tool call has no name.",
    "args_not_object": "The arguments of the tool call must be an object.",
    "ambiguous_arguments": "The tool call gives its arguments twice.",
    "duplicate_key": "The same argument is given twice",
    "positional_argument": "Arguments must be given by name",
    "unknown_tool": "There is no tool with this name",
    "bad_param_type": "An argument does not have the type that the tool wants",
    "unknown_param": "The tool has no argument with this name",
    "missing_param": "A required argument is missing",
    "too_many_calls": "There are more calls than one turn may make; this one was not executed.",
    "in_reasoning": "The tool call is inside the reasoning and was not executed.",
}


def message(fault: Fault, name: str | None, block: tuple[int, int], tools: ToolSet | None) -> str:
    """The sentence for `fault`: what, where in the block, and the nearest tool name."""
    sentence = _SENTENCES[fault.kind]
    if fault.kind == "unknown_tool" and name is not None:
        near = difflib.get_close_matches(name[:80], tools.names if tools else (), 1, 0.6)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        return f"There is no tool named {name[:80]!r}{hint}"
    if sentence.endswith("."):
        return sentence
    if fault.param is not None:
        sentence += f" ({fault.param[:80]!r})"
    if fault.detail:
        sentence += f": {fault.detail}"
    return f"{sentence}, at byte {fault.offset - block[0]} of the block."

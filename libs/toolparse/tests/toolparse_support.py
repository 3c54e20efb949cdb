"""Tools, texts and views that the tests of toolparse share."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
import toolparse
from toolparse.grammars.table import FORMATS, grammar_of, reasoning_tags

DECLARED: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "string"},
                    "n": {"type": "integer"},
                    "b": {"type": "boolean"},
                    "x": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                    "o": {"type": "object"},
                    "l": {"type": "array", "items": {"type": "integer"}},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}},
]
TOOLS = toolparse.ToolSet(DECLARED)
GRAMMARS = tuple(FORMATS)
VALUES: dict[str, list[Any]] = {
    "a": ["x", "line\nand  more ", " </tool_call> ", "é \U0001f600", "", "null", "1.10", '"q"'],
    "n": [5, -3, 0, 10**20],
    "b": [True, False],
    "x": [1.5, -0.25, None, 3],
    "o": [{"k": [1, "2", None]}, {"deep": {"er": [True]}}],
    "l": [[1, 2], [7]],
}


def shared_cases(name: str) -> list[dict[str, Any]]:
    """The rows of a file of the shared data folder; skips without it."""
    folder = os.environ.get("TURNWISE_SHARED_DATA")
    if not folder:
        pytest.skip("TURNWISE_SHARED_DATA is not set")
    lines = (Path(folder) / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def case_text(row: dict[str, Any]) -> str:
    text = row.get("text")
    return "".join(row["chunks"]) if text is None else str(text)


def written(format: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    return grammar_of(format).write(calls)


def attempts_of(calls: list[toolparse.Call]) -> list[tuple[Any, ...]]:
    """What two parses must agree on, attempt by attempt."""
    return [
        (
            call.name,
            json.dumps(call.arguments),
            call.status,
            call.byte_span,
            call.name_byte_span,
            call.arguments_byte_span,
            call.value_byte_spans,
            call.raw_arguments,
            call.repairs,
        )
        for call in calls
    ]


def view(parsed: toolparse.Parsed) -> tuple[Any, ...]:
    """What two parses of one text must agree on."""
    return (
        parsed.content,
        parsed.reasoning,
        attempts_of(parsed.attempts),
        [(error.kind, error.offset, error.byte_span) for error in parsed.errors],
        parsed.stop_byte_span,
    )


class Texts:
    """Texts of a format with slips in them, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.parts: dict[str, list[str]] = {}

    def pieces(self, format: str) -> list[str]:
        """The tags of a format, and what models put in the wrong place."""
        found = self.parts.get(format)
        if found is None:
            text = written(format, [("f", {"a": "x", "n": 1}), ("g", {})])
            tags = [p for p in re.split(r"(<[^<>]*>|[\[\]{}(),=:\"])", text) if p]
            tags += [tag for pair in reasoning_tags(format) for tag in pair]
            extra = "<think>|</think>|\n| |<|im_end|>|</s>|\\|é|'|<|1e999|\ud83d|True|```"
            found = self.parts[format] = tags + extra.replace("<|im_end|>", "").split("|")
            found.append("<|im_end|>")
        return found

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        pick = self.random
        return [
            (
                pick.choice("fg"),
                {k: pick.choice(VALUES[k]) for k in pick.sample(list(VALUES), pick.randrange(4))},
            )
            for _ in range(pick.randrange(4))
        ]

    def text(self, format: str) -> str:
        pick = self.random
        calls = self.calls()
        first, last = pick.choice(reasoning_tags(format) or (("<think>", "</think>"),))
        text = pick.choice(["", "hi\n", f"{first}\nhm{last}\n", f"{first}{last}", "["])
        text += written(format, calls) if calls else ""
        text += pick.choice(["", "\n", "<|im_end|>", " tail"])
        for _ in range(pick.choice([0, 1, 1, 2, 3])):
            at = pick.randrange(len(text) + 1)
            roll = pick.random()
            if roll < 0.5:
                text = text[:at] + pick.choice(self.pieces(format)) + text[at:]
            elif roll < 0.8:
                text = text[:at] + text[at + pick.randrange(1, 9) :]
            else:
                text = text[:at]
        return text

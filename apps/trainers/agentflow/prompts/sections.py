"""Prompts as labelled sections: `## Label`, then the text.

    prompt = join("Solve it.", [("Question", question), ("Steps so far", memory)])
    read(prompt)["Question"]

A rule-based helper reads a prompt back with `read`, so a line of the text that looks like a label
is moved in by one space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_LABEL = re.compile(r"^## (?=\S)", re.MULTILINE)
NONE = "(none)"


def join(head: str, parts: Iterable[tuple[str, str]], tail: str = "") -> str:
    """The head, every part under its label, and the tail; an empty text becomes `(none)`."""
    blocks = [head.strip()]
    for label, text in parts:
        body = _LABEL.sub(" ## ", text.strip()) or NONE
        blocks.append(f"## {label}\n{body}")
    if tail:
        blocks.append(f"## Answer format\n{tail.strip()}")
    return "\n\n".join(block for block in blocks if block)


def read(prompt: str) -> dict[str, str]:
    """The texts of a prompt by label, as `join` had them; what precedes them is under ""."""
    found: dict[str, str] = {}
    label, lines = "", list[str]()
    for line in prompt.split("\n"):
        if line.startswith("## ") and len(line) > 3 and not line[3].isspace():
            found[label] = _text(lines)
            label, lines = line[3:], []
        else:
            lines.append(line)
    found[label] = _text(lines)
    return found


def _text(lines: list[str]) -> str:
    text = "\n".join(lines).strip()
    return "" if text == NONE else re.sub(r"^ ## (?=\S)", "## ", text, flags=re.MULTILINE)
